"""Report the receivers of many transfers. Runs once for each new partition of `receivers`."""


def handler(event, context):
    task = context.task
    busy = task.query(
        "SELECT token, receiver, transfers FROM receivers WHERE transfers >= ?",
        [task.config["at_least"]],
    )
    task.publish(
        {"alert_id": f"{row['token']}-{row['receiver']}-{task.scope['start']}", **row}
        for row in busy
    )
