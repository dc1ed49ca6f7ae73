"""Every router of the user API."""

from trace_etl.dispatcher.routes import dags, datasets, tasks, users

ROUTERS = (dags.router, tasks.router, datasets.router, users.router)
