"""HTTP app of the scheduler: health check and metrics."""

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from trace_etl.http.app import new_app
from trace_etl.http.user_tokens import bearer_token
from trace_etl.scheduler.api import DispatcherApi
from trace_etl.scheduler.cron_trigger import CronTrigger


def make_app(api: DispatcherApi, trigger: CronTrigger) -> FastAPI:
    """Make the app: `/healthz` for every caller, `/metrics` for users of the Dispatcher."""
    app = new_app("Trace scheduler", max_body=1024, is_healthy=lambda: trigger.is_healthy)

    @app.get("/metrics", response_class=Response, tags=["metrics"])
    async def get_metrics(request: Request) -> Response:
        """Counters of this process, in the Prometheus text format."""
        # The scheduler has no keys and no database, so the Dispatcher verifies the token.
        await api.check(bearer_token(request))
        return Response(generate_latest(trigger.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app
