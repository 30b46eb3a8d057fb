"""The file of a learned policy that decides as training starts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from policies.learned.artifact import make_artifact, write_artifact
from policies.learned.features import FEATURES
from policies.learned.network import untrained


def write_weights(path: Path, beta: float = 20.0) -> str:
    """Write it as training would; returns its digest."""
    artifact = make_artifact(untrained(beta=beta), np.zeros(len(FEATURES)), np.full(len(FEATURES), 20.0), {})
    path.write_bytes(write_artifact(artifact))
    return artifact.digest
