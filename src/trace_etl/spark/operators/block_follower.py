"""Follows the tip of a chain into hot tables, through every reorganisation. Runs until stopped."""

from collections.abc import Sequence

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from trace_etl.api.task.lifecycle import TaskResult
from trace_etl.dag.operators import FollowConfig
from trace_etl.data import connection
from trace_etl.data.followers import Writer
from trace_etl.model.storage import hot_table
from trace_etl.spark.context import OperatorContext
from trace_etl.spark.errors import BadTask
from trace_etl.spark.evm.fetch import RpcSource
from trace_etl.spark.evm.tables import SCHEMAS
from trace_etl.spark.evm.tip import TipReader
from trace_etl.spark.follow.follower import ChainFollower, FollowPlan, HotOutput
from trace_etl.spark.follow.streaming import StreamingFollower
from trace_etl.spark.io.inputs import Input
from trace_etl.spark.link import never
from trace_etl.spark.session.conf import is_connect
from trace_etl.spark.session.scratch import own_directory

# Above all it must notice soon that a block has gone: the loop around it is patient enough.
_TRIES = 3


def run(context: OperatorContext, config: FollowConfig) -> TaskResult:
    """Follow until the attempt shall end. Raises TaskCanceled then, or what stays broken."""
    dsn = context.settings.data_dsn
    if dsn is None:
        raise BadTask("block_follower: this worker knows no Postgres data (TRACE_DATA_DSN)")
    plan = _plan(context, config)
    source = RpcSource(context.rpc_urls(config.rpc), batch=config.batch, tries=_TRIES)
    kinds = [output.kind for output in plan.outputs]
    with TipReader(source, kinds) as reader, connection.connect(dsn) as conn:
        held = context.link.is_paused if context.link else never
        follower = ChainFollower(plan, reader, conn, context.emit, context.canceled, held)
        if config.engine == "streaming":
            _streaming(context, follower, source).run()
        else:
            follower.run()
    context.check()
    return TaskResult()


def _streaming(
    context: OperatorContext, follower: ChainFollower, source: RpcSource
) -> StreamingFollower:
    if is_connect(context.settings.master):
        # A server would run our part of a batch on its side, away from position and fence.
        raise BadTask("block_follower, engine streaming: needs a Spark of the worker's own")
    spark = context.spark
    return StreamingFollower(follower, spark, source, own_directory(context.settings.spark_dir))


def _plan(context: OperatorContext, config: FollowConfig) -> FollowPlan:
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
        # The generation's identity: a new one begins a stream of its own, the old one stands.
        writer=Writer(outputs[0].dataset_version, task.task_id, task.attempt),
        outputs=outputs,
        start=config.start_block,
        batch=config.blocks_per_commit,
        poll=config.poll_seconds,
        finality_depth=config.finality_depth_blocks,
        timeout=config.patience_seconds,
    )


def output_schemas(outputs: Sequence[str], _: Sequence[Input]) -> dict[str, StructType]:
    """Return the columns of the tables that it follows."""
    return {name: from_arrow_schema(SCHEMAS[name.removeprefix("hot_")]) for name in outputs}
