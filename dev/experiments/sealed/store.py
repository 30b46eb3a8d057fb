"""What runs found, kept in files under a digest of all that they depend on: another file costs only its own runs."""

from __future__ import annotations

import hashlib
import io
import os
import re
import zipfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import numpy as np

from experiments.held_out import sources
from experiments.held_out.runs import Run, Task, Way, flat, from_flat
from simulator.arrivals import Arrivals

_ALWAYS = ("simulator.run", "simulator.scoreboard.metrics")
_OF_WAY: Mapping[Way, str] = {"guarded": "simulator.steered", "social": "simulator.scoreboard.social"}


class Store:
    """A folder of runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fleets: dict[tuple[str, tuple[int, ...], int], bytes] = {}

    def find(self, task: Task) -> Run | None:
        """What was kept of the task; None where nothing was, or what it rests on has changed."""
        try:
            with np.load(self._path(task), allow_pickle=False) as file:
                return from_flat({key: file[key] for key in file.files})
        except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):  # not there, or cut short: run it again
            return None

    def keep(self, task: Task, run: Run) -> None:
        """Keep it, whole or not at all."""
        path = self._path(task)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        np.savez_compressed(content, **flat(run))  # type: ignore[arg-type]  # its stub takes the names for its options
        partial = path.with_suffix(f".{os.getpid()}.partial")
        partial.write_bytes(content.getvalue())
        partial.replace(path)

    def _path(self, task: Task) -> Path:
        name = re.sub(r"[^\w.-]+", "-", f"{task.policy.name}-{task.way}-{task.seeds[0]}-{task.seeds[-1]}")
        return self._folder / re.sub(r"[^\w.-]+", "-", task.scenario.name) / f"{name}-{self._key(task)}.npz"

    def _key(self, task: Task) -> str:
        policy = task.policy
        code = sources.digest(*_ALWAYS, *filter(None, [_OF_WAY.get(task.way)]), type(policy).__module__)
        content = hashlib.sha256(self._fleet(task))
        # What is in a file counts, not where it lies.
        files = {field.name for field in fields(policy) if field.metadata.get("file")}
        options = {name: value for name, value in policy.options().items() if name not in files}
        for part in (
            code,
            policy.name,
            repr(options),
            policy.digest,
            task.way,
            str(task.warm_up_share),
            np.__version__,
        ):
            content.update(part.encode() + b"\0")
        return content.hexdigest()[:16]

    def _fleet(self, task: Task) -> bytes:
        """Of the fleet and its requests, which all policies share."""
        known = (task.scenario.name, task.seeds, task.requests)
        if known not in self._fleets:
            content = hashlib.sha256(repr((task.scenario.fleet, task.seeds)).encode())
            for seed in task.seeds:
                arrivals = task.scenario.arrivals(seed, task.requests)
                for field in fields(Arrivals):
                    content.update(np.asarray(getattr(arrivals, field.name)).tobytes())
            self._fleets[known] = content.digest()
        return self._fleets[known]
