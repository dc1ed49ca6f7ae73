"""Every router of the user API."""

from trace_etl.dispatcher.user_api.routes import (
    backfills,
    changes,
    dags,
    events,
    jobs,
    metrics,
    notifications,
    outbox,
    pressure,
    rollouts,
    runtimes,
    tasks,
    udf,
    users,
    webhooks,
)
from trace_etl.dispatcher.user_api.routes.data import (
    batches,
    datasets,
    invalidations,
    lineage,
    storage,
)

ROUTERS = (
    dags.router,
    rollouts.router,
    runtimes.router,
    jobs.router,
    events.router,
    tasks.router,
    notifications.router,
    outbox.router,
    datasets.router,
    batches.router,
    pressure.router,
    backfills.router,
    lineage.router,
    invalidations.router,
    storage.router,
    udf.router,
    users.router,
    changes.router,
    webhooks.router,
    metrics.router,
)
