"""Metrics of the calls about the fleet."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter


class FleetCallCounts:
    """Labels are names of calls, which the code knows."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"balancer_fleet_{name}", text, labels, registry=registry)

        self.calls = counter("calls", "Calls about the fleet, by what became of them", "call", "result")
        self.unanswered = counter("unanswered", "Workers that gave a call about the fleet no answer in time", "call")
        self.disagreements = counter(
            "disagreements", "Calls about the fleet that workers answered differently, though they should not", "call"
        )
        self.changes = counter("changes", "Changes of workers by clients, by what became of them", "call", "result")
        self.replays = counter(
            "replays", "Changes made again at a worker that joined, by what became of them", "result"
        )
