"""The model that load is sent to, which costs nothing, and real Tritons that serve it."""

from __future__ import annotations

from pathlib import Path

from balancer.stack.stack import REPOSITORY, new_triton
from balancer.stack.tritonserver import TritonServer

MODEL = "identity"
"""Returns what it gets."""
POLICY = "expected_latency"


def new_tritons(directory: Path, count: int = 2) -> list[TritonServer]:
    """With this one model, to be started."""
    models = directory / "models"
    models.mkdir(parents=True)
    (models / MODEL).symlink_to(REPOSITORY / "triton" / "feature_models" / MODEL)
    return [new_triton(f"worker-{number}", models, directory) for number in range(count)]
