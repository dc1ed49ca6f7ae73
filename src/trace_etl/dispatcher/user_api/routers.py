"""Every router of the user API."""

from trace_etl.dispatcher.user_api.routes import (
    changes,
    events,
    ids,
    metrics,
    notifications,
    outbox,
    users,
    webhooks,
)
from trace_etl.dispatcher.user_api.routes.dags import dags, jobs, rollouts, runtimes, udf
from trace_etl.dispatcher.user_api.routes.data import (
    batches,
    checks,
    dataset_changes,
    datasets,
    invalidations,
    lineage,
    partition_map,
    storage,
)
from trace_etl.dispatcher.user_api.routes.tasks import backfills, pressure, tasks
from trace_etl.dispatcher.user_api.routes.views import graph, overview

ROUTERS = (
    overview.router,
    dags.router,
    graph.router,
    rollouts.router,
    runtimes.router,
    jobs.router,
    ids.router,
    events.router,
    tasks.router,
    notifications.router,
    outbox.router,
    datasets.router,
    partition_map.router,
    dataset_changes.router,
    batches.router,
    checks.router,
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
