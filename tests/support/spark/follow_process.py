"""A follower in a separate process that a test can kill: `python follow_process.py PLAN.json ATTEMPT`.

It reports by appending lines to a file instead of calling the Dispatcher. With the engine
`streaming` it starts a JVM, which ends with it.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event as Signal
from typing import Any
from uuid import UUID

from trace_etl.api.task.events import Event
from trace_etl.data import connection
from trace_etl.data.followers import Writer
from trace_etl.objects.file_store import FileStore
from trace_etl.spark.evm.fetch import RpcSource
from trace_etl.spark.evm.tip import TipReader
from trace_etl.spark.follow.follower import ChainFollower, FollowPlan, HotOutput
from trace_etl.spark.follow.streaming import StreamingFollower
from trace_etl.spark.session.scratch import own_directory
from trace_etl.spark.session.warm_session import WarmSession
from trace_etl.spark.settings import SparkSettings


def main() -> None:
    config, attempt = json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2])
    outputs = [
        HotOutput(output["kind"], output["table"], UUID(output["dataset"]), UUID(output["version"]))
        for output in config["outputs"]
    ]
    writer = Writer(outputs[0].dataset_version, UUID(config["task_id"]), attempt)
    poll = 0.01 if config["engine"] == "loop" else 0.1  # a poll of Spark costs more
    plan = FollowPlan("test.follow", writer, outputs, start=0, batch=config["batch"], poll=poll)

    def report(events: Sequence[Event], invalidations: Sequence[Mapping[str, Any]] = ()) -> None:
        with Path(config["report_file"]).open("a") as file:
            ranges = [[item["start"], item["end"]] for item in invalidations]
            file.write(json.dumps({"cursor": events[0].cursor, "ranges": ranges}) + "\n")

    source = RpcSource((config["url"],), tries=2, initial_delay=0.01)
    kinds = [output.kind for output in outputs]
    with TipReader(source, kinds) as reader, connection.connect(config["dsn"]) as conn:
        follower = ChainFollower(plan, reader, conn, report, Signal())
        if config["engine"] == "loop":
            follower.run()
        else:
            place = Path(sys.argv[1]).parent / "spark"
            spark = WarmSession(SparkSettings(FileStore(place), place, is_brief=True)).get()
            StreamingFollower(follower, spark, source, own_directory(place)).run()


if __name__ == "__main__":
    main()
