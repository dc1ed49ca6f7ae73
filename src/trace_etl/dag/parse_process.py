"""`python -m trace_etl.dag.parse_process`: parse a DAG file from stdin, and write the result to stdout."""

import pickle
import resource
import sys

from trace_etl.dag.parsing import parse_dag
from trace_etl.model.errors import Invalid

CPU_SECONDS = 60
MEMORY_BYTES = 1024**3


def main() -> None:
    """Write the pickled Dag, or its list of faults."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        result = parse_dag(sys.stdin.buffer.read().decode())
    except Invalid as error:
        result = error.faults
    pickle.dump(result, sys.stdout.buffer)


if __name__ == "__main__":
    main()
