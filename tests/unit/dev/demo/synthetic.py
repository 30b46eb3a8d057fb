"""Clearly made-up outcomes for the demo's report: gamma latencies, not measurements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from balancer.load.result import LoadResult
from dev.demo import traffic
from dev.demo.report import Report, make_report
from dev.demo.steps import DigitsOutcome, PolicyOutcome

MEAN_MS = {
    "round_robin": 700,
    "least_requests": 40,
    "wlpr": 33,
    "power_of_two": 48,
    "peak_ewma": 37,
    "prequal": 30,
    "token_bucket": 60,
    "expected_latency": 22,
}
FLEET: dict[str, Any] = {
    "workers": [{"worker": f"made-up-{i}", "device": gpu} for i, gpu in enumerate(["A100", "V100", "A30", "T4"])]
}


def outcome(
    policy: str, mean_ms: float, failed: int = 0, count: int = 3000, workers: Mapping[str, Any] = FLEET
) -> PolicyOutcome:
    generator = np.random.default_rng(len(policy))
    scheduled_s = np.sort(generator.random(count) * 15)
    model = generator.integers(0, 3, count)
    code = np.zeros(count, np.int64)
    code[:failed] = 1
    result = LoadResult(
        models=tuple(mix.name for mix in traffic.MIX),
        codes=("OK", "UNAVAILABLE"),
        workers=tuple(worker["worker"] for worker in workers["workers"]),
        duration_s=15.0,
        scheduled_s=scheduled_s,
        started_s=scheduled_s + 1e-4,
        latency_s=generator.gamma(1.2, mean_ms / 1.2e3, count) + 2e-3,
        deadline_s=np.array([mix.deadline_s for mix in traffic.MIX])[model],
        rows=np.ones(count, np.int64),
        model=model,
        code=code,
        worker=generator.choice(4, count, p=(0.4, 0.25, 0.25, 0.1)),
    )
    return PolicyOutcome(policy, result, (scheduled_s * 2).astype(np.int64), (0.04, 0.06, 0.05))


def outcomes() -> list[PolicyOutcome]:
    return [outcome(policy, mean_ms) for policy, mean_ms in MEAN_MS.items()]


def made_up_report(found: list[PolicyOutcome], digits: DigitsOutcome | None = None) -> Report:
    return make_report(digits or DigitsOutcome(540, 530, {}), found, traffic.Plan(), FLEET)
