"""Replace the values of columns by pseudonyms, which only the holder of a key can find again.

The job names the secret `pseudonym_key`. The same key and value give the same pseudonym.
"""

from pyspark.sql import functions as F

from trace_etl.spark.context import OperatorContext
from trace_etl.spark.errors import BadTask
from trace_etl.spark.io.writers import Frame
from trace_pseudonyms import PseudonymsConfig


def run(context: OperatorContext, config: PseudonymsConfig) -> Frame:
    """Return the rows of the input with pseudonyms. Raises BadTask."""
    [rows] = context.inputs
    key = context.secrets.get("pseudonym_key")
    unknown = sorted({*config.columns} - {*rows.frame.columns})
    if unknown:
        raise BadTask(f"pseudonyms, config.columns: the input has no column {unknown[0]!r}")
    if key is None:
        raise BadTask("pseudonyms: add `secrets: [pseudonym_key]` to the job")
    context.log(f"replacing {', '.join(config.columns)}\n")
    hashed = {name: F.sha2(F.concat(F.lit(key), F.col(name)), 256) for name in config.columns}
    return Frame(context.outputs[0], rows.frame.withColumns(hashed), is_large=not rows.is_small)
