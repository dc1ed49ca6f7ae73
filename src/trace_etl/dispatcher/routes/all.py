"""Every router of the user API."""

from trace_etl.dispatcher.routes import dags, datasets, events, jobs, pressure, tasks, users

ROUTERS = (
    dags.router,
    jobs.router,
    events.router,
    tasks.router,
    datasets.router,
    pressure.router,
    users.router,
)
