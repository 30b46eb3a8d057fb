"""What runs found, kept in files under a digest of all that they depend on: another file costs only its own runs."""

from __future__ import annotations

import contextlib
import hashlib
import io
import multiprocessing
import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import fields
from pathlib import Path

import numpy as np

from dev.experiments.sealed import sources
from dev.experiments.sealed.runs import Run, Task, Way, execute, flat, from_flat
from simulator.arrivals import Arrivals

_ALWAYS = ("simulator.run", "simulator.compare.metrics")
_OF_WAY: Mapping[Way, str] = {"guarded": "simulator.steered", "social": "simulator.compare.social"}


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


def run_all(tasks: Sequence[Task], store: Store, processes: int, done: Callable[[Task], None] = lambda _: None) -> None:
    """Run what is not in the store, and keep each at once; `done` is told of each."""
    if processes == 1:
        for task in tasks:
            store.keep(task, execute(task))
            done(task)
        return
    # Not fork: the compiled engine's threads would not survive it.
    context = multiprocessing.get_context("forkserver")
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ProcessPoolExecutor(processes, mp_context=context))
        stack.callback(pool.shutdown, cancel_futures=True)  # first: where one failed, the others need not begin
        waiting = {pool.submit(execute, task): task for task in tasks}
        for future in as_completed(waiting):
            store.keep(waiting[future], future.result())
            done(waiting[future])
