"""python -m trace_etl.devtools.devchain"""

import typer

from trace_etl.devtools.devchain.command import devchain

if __name__ == "__main__":
    typer.run(devchain)
