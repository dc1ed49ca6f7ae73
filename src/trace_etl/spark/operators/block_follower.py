"""Follow the tip of a chain into hot tables and handle reorganisations. Runs until stopped."""

from collections.abc import Sequence
from functools import partial

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from trace_etl.api.task.lifecycle import TaskResult
from trace_etl.dag.chain.rules import VerifyRules
from trace_etl.dag.operators import FollowConfig
from trace_etl.data import connection
from trace_etl.data.followers import Writer
from trace_etl.model.storage import hot_table
from trace_etl.spark.context import OperatorContext
from trace_etl.spark.dispatcher_link import never_paused
from trace_etl.spark.errors import BadTask
from trace_etl.spark.evm.fetch import RpcSource
from trace_etl.spark.evm.tables import make_schema
from trace_etl.spark.evm.tip import TipReader
from trace_etl.spark.follow.follower import ChainFollower, FollowPlan, HotOutput
from trace_etl.spark.follow.metrics import METRICS
from trace_etl.spark.follow.streaming import StreamingFollower
from trace_etl.spark.io.inputs import Input
from trace_etl.spark.session.conf import is_connect
from trace_etl.spark.session.scratch import own_directory

# Few tries per request: the follower must notice a replaced block soon, and its loop retries.
_TRIES = 3


def run(context: OperatorContext, config: FollowConfig) -> TaskResult:
    """Follow until the attempt is canceled (TaskCanceled) or an error outlasts the retries."""
    dsn = context.settings.data_dsn
    if dsn is None:
        raise BadTask("block_follower: Postgres data is not configured; set TRACE_DATA_DSN")
    plan = _make_plan(context, config)
    source = RpcSource(context.rpc_urls(config.rpc), batch=config.batch, tries=_TRIES)
    kinds, rules = [output.kind for output in plan.outputs], context.verify_rules(config)
    count = partial(METRICS.record_rejected, plan.name)
    set_aside = partial(METRICS.record_set_aside, plan.name)
    with (
        TipReader(source, kinds, rules, plan.columns, count, set_aside) as reader,
        connection.connect(dsn) as conn,
    ):
        is_paused = context.link.is_paused if context.link else never_paused
        follower = ChainFollower(plan, reader, conn, context.emit, context.canceled, is_paused)
        if context.link is not None:
            follower.report_head = context.link.report_head
        if config.engine == "streaming":
            _make_streaming_follower(context, follower, source, rules).run()
        else:
            follower.run()
    context.check()
    return TaskResult()


def _make_streaming_follower(
    context: OperatorContext, follower: ChainFollower, source: RpcSource, rules: VerifyRules
) -> StreamingFollower:
    if is_connect(context.settings.master):
        # A Connect server would run `foreachBatch` in its own process, where the stream position
        # and the fence of this attempt are not available.
        raise BadTask(
            "block_follower: `engine: streaming` does not work with Spark Connect; use "
            "`engine: loop`, or run Spark in the worker"
        )
    directory = own_directory(context.settings.spark_dir)
    return StreamingFollower(follower, context.spark, source, directory, rules)


def _make_plan(context: OperatorContext, config: FollowConfig) -> FollowPlan:
    task = context.task
    outputs = [
        HotOutput(
            kind=output.name.removeprefix("hot_"),
            table=hot_table(output.dataset_uuid, output.dataset_version),
            dataset_uuid=output.dataset_uuid,
            dataset_version=output.dataset_version,
        )
        for output in task.outputs
    ]
    return FollowPlan(
        name=f"{task.job.dag_name}.{task.job.name}",
        # The dataset version identifies the generation: a new generation starts a new stream.
        writer=Writer(outputs[0].dataset_version, task.task_id, task.attempt),
        outputs=outputs,
        start=config.start_block,
        batch=config.blocks_per_commit,
        poll=config.poll_seconds,
        finality_depth=config.finality_depth_blocks,
        timeout=config.patience_seconds,
        columns=config.column_choice,
    )


def output_schemas(
    outputs: Sequence[str], _: Sequence[Input], config: FollowConfig
) -> dict[str, StructType]:
    """Return the columns of the hot tables."""
    return {
        name: from_arrow_schema(make_schema(name.removeprefix("hot_"), config.column_choice))
        for name in outputs
    }
