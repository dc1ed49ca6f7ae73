"""The background supervisor: reads its order from standard input."""

import json
import sys

from trace_etl.lite import detached

if __name__ == "__main__":
    sys.exit(detached.run(json.load(sys.stdin)))
