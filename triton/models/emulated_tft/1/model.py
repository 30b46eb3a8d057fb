"""An emulated model; see triton/emulation/emulated_gpu.py."""

import sys
from pathlib import Path

# Triton loads this file by its path: nothing puts the code that the emulated models share on sys.path.
sys.path.append(str(Path(__file__).resolve().parents[3] / "emulation"))

from emulated_gpu import EmulatedModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
