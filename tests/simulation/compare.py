"""Prints what each policy achieves in the small simulated fleet: `python tests/simulation/compare.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as pytest has it

from simulation.fleet import simulate  # needs the line above

from policies import BUILTIN  # the formatter sorts it after

SPEEDS = (1.0, 1.0, 2.0, 4.0)
RATE_PER_S = 1500.0
BALANCERS = (1, 2, 4)
SEEDS = range(5)


def main() -> None:
    print("| policy | " + " | ".join(f"{count} balancer{'s' * (count > 1)}" for count in BALANCERS) + " |")
    print("|---" * (1 + len(BALANCERS)) + "|")
    for name, policy in BUILTIN.items():
        cells = []
        for balancers in BALANCERS:
            runs = [1e3 * simulate(policy(), SPEEDS, RATE_PER_S, 4000, balancers, seed) for seed in SEEDS]
            means, p99s = ([float(f(run)) for run in runs] for f in (np.mean, lambda run: np.percentile(run, 99)))
            cells.append(f"{np.median(means):.1f} / {np.median(p99s):.0f}")
        print(f"| `{name}` | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
