"""Triton's own load tester, perf_analyzer: fetched aside, and run.

The wheel `tritonclient` 2.46.0 is one of those that carry the program. It needs two libraries: CUDA's runtime, which is
a wheel too, and libb64, which Debian has. All lie in a folder of their own, and nothing of the environment is changed.
"""

from __future__ import annotations

import asyncio
import ctypes.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from balancer.errors import OperatorError

PACKAGES = ("tritonclient==2.46.0", "nvidia-cuda-runtime-cu12==12.4.127")
_DEBIAN_PACKAGE, _LIBRARY = "libb64-0d", "b64"
DEFAULT_FOLDER = Path(__file__).resolve().parents[2] / "out" / "perf_analyzer"
_FETCH_S = 300.0
_LONGEST_S = 180.0
"""Of one run."""


@dataclass(frozen=True)
class PerfAnalyzer:
    """The program, where it lies."""

    executable: Path
    libraries: tuple[Path, ...]
    """Folders with what it needs."""

    async def run(self, *arguments: str) -> tuple[int, str]:
        """Run it, for its status and what it printed; killed when this is cancelled, or after three minutes."""
        known = os.environ.get("LD_LIBRARY_PATH")
        path = os.pathsep.join([*map(str, self.libraries), *([known] if known else [])])
        process = await asyncio.create_subprocess_exec(
            self.executable,
            *arguments,
            env=os.environ | {"LD_LIBRARY_PATH": path},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), _LONGEST_S)
        except TimeoutError:
            raise OperatorError(f"perf_analyzer {' '.join(arguments)} has not ended in {_LONGEST_S:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return process.returncode or 0, output.decode(errors="replace")


def find_perf_analyzer(folder: Path = DEFAULT_FOLDER) -> PerfAnalyzer:
    """Fetched into `folder` where it is not there yet.

    Raises:
        OperatorError: it cannot be had; the message says what is missing.
    """
    stamp, wanted = folder / "fetched", "\n".join((*PACKAGES, _DEBIAN_PACKAGE))
    if not (stamp.exists() and stamp.read_text() == wanted):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="perf_analyzer-", dir=folder.parent) as draft:
            made = Path(draft) / "whole"
            _fetch(made)
            (made / "fetched").write_text(wanted)
            # Whole or not at all: several may want it at once.
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)
    libraries = {path.parent for path in (*folder.rglob("libcudart.so.*"), *folder.rglob("libb64.so.*"))}
    return PerfAnalyzer(folder / "bin" / "perf_analyzer", tuple(sorted(libraries)))


def _fetch(folder: Path) -> None:
    remedy = "it is in wheels for Linux on x86-64 alone"
    _run(f"{', '.join(PACKAGES)} could not be fetched ({remedy})", [*_PIP, "--target", str(folder), *PACKAGES], folder)
    if ctypes.util.find_library(_LIBRARY) is not None:
        return
    missing = f"perf_analyzer needs lib{_LIBRARY}; on Debian: apt-get install {_DEBIAN_PACKAGE}"
    _run(missing, ["apt-get", "download", _DEBIAN_PACKAGE], folder)
    for package in folder.glob(f"{_DEBIAN_PACKAGE}*.deb"):
        _run(missing, ["dpkg-deb", "-x", str(package), str(folder)], folder)


_PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")


def _run(what: str, command: Sequence[str], folder: Path) -> None:
    """Within the folder; `what` is said where it fails."""
    folder.mkdir(exist_ok=True)
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=_FETCH_S)
    except (OSError, subprocess.SubprocessError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise OperatorError(f"{what}: {lines[-1] if lines else error}") from error
