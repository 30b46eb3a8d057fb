"""All that a run needs to go on as if it had never stopped, in one file that is there whole or not at all."""

from __future__ import annotations

import io
import json
import os
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from policies.base import FloatArray
from policies.learned.network import Network

FILE = "checkpoint.npz"


@dataclass(slots=True)
class Checkpoint:
    """The state of a run between two iterations."""

    algorithm: dict[str, FloatArray]
    """As `Algorithm.state` has it."""
    best: Network
    last: Network
    best_iteration: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)
    """What each evaluation found."""
    wall_s: float = 0.0
    """That the run took, in all its parts."""

    def write(self, folder: Path) -> None:
        """Put it in place of the one before."""
        told = {"best_iteration": self.best_iteration, "curve": self.curve, "wall_s": self.wall_s}
        arrays: dict[str, Any] = {f"algorithm/{name}": array for name, array in self.algorithm.items()}
        for which, network in (("best", self.best), ("last", self.last)):
            arrays |= {f"{which}/{name}": array for name, array in network._asdict().items()}
        content = io.BytesIO()
        np.savez(content, told=np.frombuffer(json.dumps(told).encode(), np.uint8), **arrays)
        write_whole(folder / FILE, content.getvalue())


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The one in the folder; None where there is none.

    Raises:
        ValueError: it is damaged, which only happens to it from outside.
    """
    path = folder / FILE
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        told = json.loads(arrays.pop("told").tobytes())
        parts: dict[str, dict[str, Any]] = {"algorithm": {}, "best": {}, "last": {}}
        for name, array in arrays.items():
            part, _, inner = name.partition("/")
            parts[part][inner] = array
        return Checkpoint(parts["algorithm"], Network(**parts["best"]), Network(**parts["last"]), **told)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged ({error}); begin anew in another folder") from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that, whatever is killed when, it has the old content or the new."""
    beside = path.with_name(f"{path.name}.part")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
