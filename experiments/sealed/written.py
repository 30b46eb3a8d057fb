"""The page of the distribution, made of the numbers that are drawn from."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from experiments.held_out.tables import markdown
from simulator.training.shared_devices import NETWORK
from simulator.training.written import WRITTEN, Written


def page(written: Written = WRITTEN) -> str:
    """As Markdown."""
    lines = [
        [each.metadata["what"], each.metadata["how"], _values(each.metadata["how"], getattr(written, each.name))]
        for each in _ordered()
    ]
    return "\n\n".join(
        [
            "<!-- Written by python -m experiments.sealed distribution -->",
            "# The distribution of sealed scenarios",
            "What a [sealed scenario](sealed.md) is drawn from: each line is one draw, independent of the others "
            "unless it says otherwise. Nothing here is chosen by what a policy makes of it. The generator is "
            "`simulator/training/written.py`, and models and workers are those of "
            "`simulator/training/shared_devices.py`, which the random fleets of [the estimates](estimators.md) come "
            "from too, and half of the random scenarios that `learned` is trained on, with other numbers. A scenario "
            "is told by a seed and its number.",
            markdown(["what", "drawn", "values"], lines, words=3),
            f"Always: {1e3 * NETWORK.to_worker_s:g} ms to the worker and {1e3 * NETWORK.to_client_s:g} ms back, "
            f"outcomes known after {1e3 * NETWORK.outcome_s:g} ms, routers with their default settings but for "
            "`sticky_keys`, which is off where there are sessions, so that policies place them. Nothing "
            "is held back, and nothing is shed for its deadline: those are settings, the same under every policy.",
        ]
    ) + "\n"  # fmt: skip


def _ordered() -> list[Any]:
    return [each for each in fields(Written) if "what" in each.metadata]


def _values(how: str, value: Any) -> str:
    if "uniform" in how:
        return f"{value[0]:g} to {value[1]:g}"
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return ", ".join(f"{name} {share:.0%}" for name, share in value)
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) if isinstance(value[0], str) else ", ".join(f"{each:g}" for each in value)
    return f"{value:g}"
