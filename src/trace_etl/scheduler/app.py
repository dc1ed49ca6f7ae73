"""The scheduler's own address: alive, and what it counts."""

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from trace_etl.http.app import new_app
from trace_etl.http.user_tokens import bearer_token
from trace_etl.scheduler.api import DispatcherApi
from trace_etl.scheduler.metrics import Figures


def make_app(api: DispatcherApi, figures: Figures) -> FastAPI:
    """`/healthz` for anybody, `/metrics` for whom the Dispatcher lets in."""
    app = new_app("Trace scheduler", max_body=1024)

    @app.get("/metrics", response_class=Response, tags=["metrics"])
    async def metrics(request: Request) -> Response:
        """Counters of this process, in Prometheus' text format."""
        # It holds no keys and sees no database: the Dispatcher knows who this is.
        await api.check(bearer_token(request))
        return Response(generate_latest(figures.registry), media_type=CONTENT_TYPE_LATEST)

    return app
