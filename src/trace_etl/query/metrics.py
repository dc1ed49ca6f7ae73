"""Prometheus metrics of the Query Service."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)

disable_created_metrics()
REGISTRY = CollectorRegistry()
QUERIES = Counter(
    "trace_queries", "Queries, by the code of their result.", ["code"], registry=REGISTRY
)
SECONDS = Histogram(
    "trace_query_seconds",
    "Duration of queries, answered or refused, including the wait for a slot.",
    buckets=(0.005, 0.02, 0.1, 0.5, 2, 10, 60),
    registry=REGISTRY,
)
SLOTS = Gauge("trace_query_slots_free", "Queries that could start now.", registry=REGISTRY)
