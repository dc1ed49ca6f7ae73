"""What a user-defined function imports. Standard library only.

def handler(event, context):
    task = context.task
    rows = task.query("SELECT transaction_hash, amount FROM transfers WHERE amount > ?", [1000])
    task.publish({"alert_id": row["transaction_hash"]} for row in rows)
"""

from trace_etl.sdk.task import CallFailed, FunctionContext, Task

__all__ = ["CallFailed", "FunctionContext", "Task"]
