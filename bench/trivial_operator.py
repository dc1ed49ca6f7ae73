"""A platform operator that does nothing, installed as a package beside the platform."""

from pathlib import Path

from trace_etl.api.task.lifecycle import TaskResult
from trace_etl.dag.operator import Operator, OperatorConfig, one_output

TRIVIAL = Operator("trivial", OperatorConfig, ("spark",), one_output, module=__name__)
_ENTRY_POINT = "[trace_etl.operators]\ntrivial = bench.trivial_operator:TRIVIAL\n"
_METADATA = "Metadata-Version: 2.1\nName: trace-bench\nVersion: 1.0\n"


def run(context: object, config: object) -> TaskResult:
    """Return an empty result."""
    return TaskResult()


def install(directory: Path) -> None:
    """Write the metadata of the package. The directory must be on the path of processes that use it."""
    metadata = directory / "trace_bench-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(_METADATA)
    (metadata / "entry_points.txt").write_text(_ENTRY_POINT)
