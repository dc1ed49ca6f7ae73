"""Raise an alert for every transfer of at least `at_least` units."""

from datetime import UTC, datetime

SQL = """
SELECT block_number, transaction_hash, log_index, token, value_string
  FROM transfers WHERE value_f64 >= CAST(? AS DOUBLE)
"""


def handler(event, context):
    task = context.task
    large = task.query(SQL, [str(task.config["at_least"])])
    task.publish(make_alert(task.config["rule"], row) for row in large)


def make_alert(rule, row):
    return {
        # The same transfer has the same key, however often its block is processed.
        "dedupe_key": f"{rule}:{row['transaction_hash']}:{row['log_index']}",
        "severity": "warning",
        "payload": {
            "block": row["block_number"],
            "token": row["token"],
            "value": row["value_string"],
        },
        "created_at": datetime.now(UTC).isoformat(),
    }
