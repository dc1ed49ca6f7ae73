"""Every router of the user API."""

from trace_etl.dispatcher.user_api.routes import (
    backfills,
    batches,
    changes,
    dags,
    datasets,
    events,
    invalidations,
    jobs,
    lineage,
    metrics,
    pressure,
    rollouts,
    tasks,
    users,
    webhooks,
)

ROUTERS = (
    dags.router,
    rollouts.router,
    jobs.router,
    events.router,
    tasks.router,
    datasets.router,
    batches.router,
    pressure.router,
    backfills.router,
    lineage.router,
    invalidations.router,
    users.router,
    changes.router,
    webhooks.router,
    metrics.router,
)
