"""Prometheus metrics of the followers in this process."""

from typing import get_args

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from trace_etl.spark.evm.head_watch import Reason

_DEPTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class FollowerMetrics:
    """Position, lag and reorganisations of each followed stream."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._block = Gauge(
            "trace_follower_block", "Last block in the hot tables", ["job"], registry=registry
        )
        self._lag = Gauge(
            "trace_follower_lag_blocks", "Blocks behind the tip", ["job"], registry=registry
        )
        self._reorganisations = Counter(
            "trace_follower_reorganisations",
            "Rewrites after a reorganisation of the chain",
            ["job"],
            registry=registry,
        )
        self._depth = Histogram(
            "trace_follower_reorganisation_depth_blocks",
            "Blocks removed by a rewrite",
            ["job"],
            buckets=_DEPTHS,
            registry=registry,
        )

        self._rejected = Counter(
            "trace_follower_rejected_answers",
            "Answers of nodes that contradicted a header",
            ["job"],
            registry=registry,
        )

        self._set_aside = Counter(
            "trace_follower_endpoints_set_aside",
            "Endpoints that were set aside because they lag or serve no valid chain",
            ["job", "reason"],
            registry=registry,
        )

    def register_job(self, job: str) -> None:
        """Export the series of a stream at zero, before its first event."""
        self._reorganisations.labels(job)
        self._depth.labels(job)
        self._rejected.labels(job)
        for reason in get_args(Reason):
            self._set_aside.labels(job, reason)

    def record_position(self, job: str, block: int | None, head: int) -> None:
        """Record the last block of a stream, and its lag behind the head."""
        if block is not None:
            self._block.labels(job).set(block)
            self._lag.labels(job).set(max(0, head - block))

    def record_rejected(self, job: str) -> None:
        """Count an answer that contradicted a header."""
        self._rejected.labels(job).inc()

    def record_set_aside(self, job: str, reason: Reason) -> None:
        """Count an endpoint that was set aside."""
        self._set_aside.labels(job, reason).inc()

    def record_reorganisation(self, job: str, depth: int) -> None:
        self._reorganisations.labels(job).inc()
        self._depth.labels(job).observe(depth)


METRICS = FollowerMetrics(REGISTRY)
