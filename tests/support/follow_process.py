"""A follower in a process of its own, to be killed: `python follow_process.py PLAN.json ATTEMPT`.

It tells by appending lines to a file, as the Dispatcher would record them. With the engine
`streaming` it has a JVM beside it, which dies with it.
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
    given, attempt = json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2])
    outputs = [
        HotOutput(one["kind"], one["table"], UUID(one["dataset"]), UUID(one["version"]))
        for one in given["outputs"]
    ]
    writer = Writer(outputs[0].dataset_version, UUID(given["task_id"]), attempt)
    plan = FollowPlan("test.follow", writer, outputs, start=0, batch=given["batch"], poll=0.01)

    def tell(events: Sequence[Event], invalidations: Sequence[Mapping[str, Any]] = ()) -> None:
        with Path(given["told"]).open("a") as file:
            ranges = [[one["start"], one["end"]] for one in invalidations]
            file.write(json.dumps({"cursor": events[0].cursor, "ranges": ranges}) + "\n")

    source = RpcSource((given["url"],), tries=2, initial_delay=0.01)
    kinds = [output.kind for output in outputs]
    with TipReader(source, kinds) as reader, connection.connect(given["dsn"]) as conn:
        follower = ChainFollower(plan, reader, conn, tell, Signal())
        if given["engine"] == "loop":
            follower.run()
        else:
            place = Path(sys.argv[1]).parent / "spark"
            spark = WarmSession(SparkSettings(FileStore(place), place, is_brief=True)).get()
            StreamingFollower(follower, spark, source, own_directory(place)).run()


if __name__ == "__main__":
    main()
