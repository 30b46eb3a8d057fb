"""What Prometheus scrapes: one prefix, base units, labels bounded by what the fleet has."""

from balancer.server.metrics.metrics import LATENCY_BUCKETS_S, Metrics

__all__ = ["LATENCY_BUCKETS_S", "Metrics"]
