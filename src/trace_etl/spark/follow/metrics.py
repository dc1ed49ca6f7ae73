"""How followers do, for whoever scrapes this process."""

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

_DEPTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class FollowerMetrics:
    """Lag, and reorganisations by depth, of every stream this process follows."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._block = Gauge(
            "trace_follower_block", "Last block in the hot tables", ["job"], registry=registry
        )
        self._lag = Gauge(
            "trace_follower_lag_blocks", "Blocks behind the tip", ["job"], registry=registry
        )
        self._reorganisations = Counter(
            "trace_follower_reorganisations",
            "Rewrites because the chain changed",
            ["job"],
            registry=registry,
        )
        self._depth = Histogram(
            "trace_follower_reorganisation_depth_blocks",
            "Blocks thrown away by a rewrite",
            ["job"],
            buckets=_DEPTHS,
            registry=registry,
        )

    def begin(self, job: str) -> None:
        """Show a stream from the start, at zero."""
        self._reorganisations.labels(job)
        self._depth.labels(job)

    def at(self, job: str, block: int | None, head: int) -> None:
        """Where a stream is, and where the tip is."""
        if block is not None:
            self._block.labels(job).set(block)
            self._lag.labels(job).set(max(0, head - block))

    def reorganised(self, job: str, depth: int) -> None:
        self._reorganisations.labels(job).inc()
        self._depth.labels(job).observe(depth)


METRICS = FollowerMetrics(REGISTRY)
