import csv
from pathlib import Path

import numpy as np

from dev.demo import steps

LATENCY = Path(__file__).parents[4] / "triton" / "emulation" / "latency.csv"
MEASURED = {
    "emulated_tft": "Forecasting-TFT",
    "emulated_bert_distilled": "LanguageModeling-BERT-dist6l",
    "emulated_bert_large": "LanguageModeling-BERT-large",
}


def service_s(gpu: str) -> float:
    """Mean time that a request of the mix takes on a GPU, alone, from the measured times."""
    points: dict[str, list[tuple[int, float]]] = {}
    with LATENCY.open() as file:
        for line in csv.DictReader(file):
            if line["gpu"] == gpu:
                parts = (float(line[f"compute_{part}_ms"]) for part in ("input", "infer", "output"))
                points.setdefault(line["model"], []).append((int(line["batch"]), sum(parts) / 1e3))
    total_s = 0.0
    for model in steps.MIX:
        batches, times_s = zip(*sorted(points[MEASURED[model.name]]), strict=True)
        for rows, part in zip(steps.ROWS.values, steps.ROWS.shares, strict=True):
            total_s += model.weight * part * float(np.interp(rows, batches, times_s))
    return total_s


def test_the_fleet_can_carry_the_rate_and_the_slowest_gpu_cannot_carry_its_quarter() -> None:
    gpus = ("A100", "A30", "V100", "T4")
    capacity_per_s = sum(1 / service_s(gpu) for gpu in gpus)
    assert 0.5 < steps.RATE_PER_S / capacity_per_s < 0.7
    assert 1.3 < steps.RATE_PER_S / 4 * service_s("T4") < 2


def test_windows_of_a_round_are_equal_and_rounds_differ() -> None:
    plan = steps.Plan()
    first, again, other = (steps.window(plan, number) for number in (0, 0, 1))
    assert np.array_equal(first.time_s, again.time_s)
    assert np.array_equal(first.model, again.model)
    assert np.array_equal(first.rows, again.rows)
    assert len(first) != len(other) or not np.array_equal(first.time_s, other.time_s)
    assert first.time_s[-1] < plan.settle_s + plan.window_s


def test_every_policy_has_one_turn_a_round_in_changing_order() -> None:
    plan = steps.Plan(rounds=6)
    order = steps.turns(plan)
    rounds = [[policy for number, policy in order if number == wanted] for wanted in range(6)]
    assert all(sorted(policies) == sorted(plan.policies) for policies in rounds)
    assert len({tuple(policies) for policies in rounds}) > 1
    assert [number for number, _ in order] == sorted(number for number, _ in order)
    assert order == steps.turns(plan)
