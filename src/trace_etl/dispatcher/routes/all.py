"""Every router of the user API."""

from trace_etl.dispatcher.routes import (
    backfills,
    changes,
    dags,
    datasets,
    events,
    jobs,
    pressure,
    rollouts,
    tasks,
    users,
)

ROUTERS = (
    dags.router,
    rollouts.router,
    jobs.router,
    events.router,
    tasks.router,
    datasets.router,
    pressure.router,
    backfills.router,
    users.router,
    changes.router,
)
