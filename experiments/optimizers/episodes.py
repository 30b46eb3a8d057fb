"""What the trained policies are judged on: scenarios with several request seeds each, none of which was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from experiments.ablations.variants import trained_on
from experiments.optimizers.runs import Judges
from simulator.scenario import Scenario
from simulator.training.scenarios import random_scenario
from simulator.training.validation import REPORT_SEED, cases
from simulator.training.written import NEVER_SEALED, WRITTEN, scenario

TRAIN, RANDOM, WRITTEN_ONES = (
    "Train scenarios, seeds of their own",
    "Random scenarios",
    "The distribution of sealed scenarios, other numbers",
)
_FIRST_SEED = REPORT_SEED + (1 << 22)
"""Of requests and of random scenarios: nothing was trained, chosen or judged on them."""
_WRITTEN_SEED = 7001
"""Rivals are tuned on another, and training draws other numbers; sealed ones have other numbers still."""


def judges(scenarios: int, seeds: int, requests: int) -> Judges:
    """`scenarios`: random ones, and as many of the written distribution; `seeds`: of requests, for each."""
    sets = {
        TRAIN: trained_on().shipped,
        RANDOM: _named("random", [random_scenario(np.random.default_rng(_FIRST_SEED + k)) for k in range(scenarios)]),
        WRITTEN_ONES: _named("written", [_written(k, requests) for k in range(scenarios)]),
    }
    return Judges({title: cases(each, seeds, 0, _FIRST_SEED) for title, each in sets.items()}, requests)


def _written(number: int, requests: int) -> Scenario:
    # Training draws number `NEVER_SEALED` of many seeds. Faults are within the run, which is as long as it says.
    return scenario(_WRITTEN_SEED, NEVER_SEALED + 1 + number, replace(WRITTEN, requests=requests))


def _named(kind: str, drawn: Sequence[Scenario]) -> list[Scenario]:
    return [replace(one, name=f"{kind} {k}") for k, one in enumerate(drawn)]
