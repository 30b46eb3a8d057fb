"""What Prometheus scrapes of an ingress."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class IngressMetrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.taken = Counter(
            "balancer_ingress_messages", "Messages that the broker handed out, each time.", registry=registry
        )
        self.settled = Counter(
            "balancer_ingress_settled",
            "Messages by what they ended as; known: answered before; lost_race: another one published first.",
            ["fate"],
            registry=registry,
        )
        self.calls = Counter(
            "balancer_ingress_calls", "Calls to the listener, by how they ended.", ["result"], registry=registry
        )
        self.repeated = Counter(
            "balancer_ingress_repeated_executions",
            "Calls for a message that a worker may have begun with before.",
            registry=registry,
        )
        self.broker_errors = Counter(
            "balancer_ingress_broker_errors", "What the broker did not do when it was asked.", registry=registry
        )
        self.events = Counter(
            "balancer_ingress_events",
            "Events of streamed answers; lost: the broker did not take them in time.",
            ["fate"],
            registry=registry,
        )
        self.held = Gauge("balancer_ingress_held_messages", "Taken, and not settled.", registry=registry)
        self.lag = Gauge(
            "balancer_ingress_lag_messages",
            "Messages that nothing has become of yet, at the broker.",
            registry=registry,
        )
        self.oldest = Gauge(
            "balancer_ingress_oldest_seconds", "Age of the oldest message that is held.", registry=registry
        )
        self.room = Gauge("balancer_ingress_room_requests", "That may be at the fleet.", ["model"], registry=registry)
        self.duration = Histogram(
            "balancer_ingress_message_duration_seconds",
            "From a message's publication to its answer's.",
            buckets=_LATENCY_BUCKETS_S,
            registry=registry,
        )

    def latest(self) -> bytes:
        return generate_latest(self.registry)
