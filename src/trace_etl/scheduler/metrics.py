"""Prometheus metrics of the scheduler."""

from dataclasses import dataclass, field
from datetime import timedelta

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

disable_created_metrics()


@dataclass
class SchedulerMetrics:
    """Counters of one scheduler process."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self.jobs = Gauge(
            "trace_scheduler_jobs", "Cron sources that are deployed.", registry=self.registry
        )
        self.ticks = Counter(
            "trace_scheduler_ticks",
            "Fired ticks, by the scheduler that fired them: this one or another.",
            ["fired_by"],
            registry=self.registry,
        )
        self.refused = Counter(
            "trace_scheduler_ticks_refused",
            "Ticks that the Dispatcher rejected.",
            registry=self.registry,
        )
        self.failures = Counter(
            "trace_scheduler_failures",
            "Passes that could not reach the Dispatcher.",
            registry=self.registry,
        )
        self.late = Histogram(
            "trace_scheduler_tick_lateness_seconds",
            "How late a tick was fired.",
            buckets=(0.1, 0.5, 1, 5, 15, 60, 600, 3600, 86400),
            registry=self.registry,
        )

    def fired(self, *, by_us: bool, late: timedelta) -> None:
        """Count a tick that this scheduler or another one fired."""
        self.ticks.labels("us" if by_us else "another").inc()
        self.late.observe(max(0.0, late.total_seconds()))
