"""python -m trace_etl.devchain"""

import typer

from trace_etl.devchain.command import devchain

if __name__ == "__main__":
    typer.run(devchain)
