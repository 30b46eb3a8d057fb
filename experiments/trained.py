"""What experiments that train have in common: training that goes on where it was stopped, and what came of it."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from policies.base import FloatArray, Policy
from simulator.training.checkpoint import write_whole
from simulator.training.pool import Here
from simulator.training.validation import Case, latencies

_SAVE_EVERY_S = 15.0


def finish(algorithm: Any, kept: Path) -> FloatArray:
    """Train a `trainer.Algorithm` to its end in this process; its state is kept in the file, from which it goes on.

    Returns:
        Seconds of CPU time that each iteration took: other processes on the machine have no part in it.
    """
    spent_s = _restored(algorithm, kept)
    saved_s = time.process_time()
    while algorithm.iteration < algorithm.settings.iterations:
        began_s = time.process_time()
        algorithm.iterate(Here())
        now_s = time.process_time()
        spent_s.append(now_s - began_s)
        if now_s - saved_s > _SAVE_EVERY_S or algorithm.iteration == algorithm.settings.iterations:
            _save(algorithm.state(), spent_s, kept)
            saved_s = now_s
    return np.array(spent_s)


def outcome_of(
    kept: Path,
    sets: Mapping[str, Sequence[Case]],
    requests: int,
    make: Callable[[], tuple[Policy, dict[str, Any]]],
    done: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Do of one policy what is not done yet; returns the outcome, which is also kept in the file.

    Args:
        kept: The file.
        sets: On which it is judged, by title.
        requests: Of each case.
        make: The policy, and what is to be told of it; asked only where something is missing.
        done: Called once that is no longer so.
    """
    outcome: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {"judged": {}}
    missing = {title: cases for title, cases in sets.items() if title not in outcome["judged"]}
    if missing:
        policy, told = make()
        outcome |= told
        for title, cases in missing.items():
            mean_s, p99_s = _judged(cases, requests, policy)
            outcome["judged"][title] = {"mean_s": mean_s.tolist(), "p99_s": p99_s.tolist()}
            write_whole(kept, json.dumps(outcome).encode())
        done()
    return outcome


def _judged(cases: Sequence[Case], requests: int, policy: Policy) -> FloatArray:
    """Mean and p99 of each case in seconds, `(2, cases)`; played side by side where settings that a batch shares are
    alike."""
    alike: dict[str, list[int]] = {}
    for i, case in enumerate(cases):
        settings = case.scenario.fleet.settings
        alike.setdefault(str((settings.estimators, settings.sticky_keys)), []).append(i)
    found = np.zeros((2, len(cases)))
    for chosen in alike.values():
        found[:, chosen] = latencies([cases[i] for i in chosen], requests, policy, Here())
    return found


def _save(state: dict[str, FloatArray], spent_s: list[float], path: Path) -> None:
    content = io.BytesIO()
    np.savez(content, **{f"algorithm/{name}": array for name, array in state.items()}, spent_s=spent_s)  # type: ignore[arg-type]  # numpy's stub takes no arrays by name
    write_whole(path, content.getvalue())


def _restored(algorithm: Any, path: Path) -> list[float]:
    """Go on from what was kept, if anything was; returns the seconds that were spent on each iteration before."""
    if not path.exists():
        return []
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    spent_s: list[float] = arrays.pop("spent_s").tolist()
    algorithm.restore({name.removeprefix("algorithm/"): array for name, array in arrays.items()})
    return spent_s
