"""The file of a learned policy that decides as training starts."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from policies.hashing import hash_draw, key_of, kind_hash_of, model_hash_of
from policies.learned import Learned
from policies.learned.artifact import make_artifact, write_artifact
from policies.learned.features import FEATURES, NO_TOLLS
from policies.learned.network import untrained


def owing(
    tolls: Mapping[tuple[str, str], float], kinds: Mapping[tuple[str, str], float] = MappingProxyType({})
) -> Learned:
    """The learned policy as training starts, with tolls by model and worker, and by model and kind of device."""
    lines = {_identity(key_of(worker), model): toll for (model, worker), toll in tolls.items()}
    lines |= {_identity(kind_hash_of(kind), model): toll for (model, kind), toll in kinds.items()}
    table = np.array([*sorted(lines.items()), *NO_TOLLS.tolist()])
    ranges = np.zeros(len(FEATURES)), np.full(len(FEATURES), 1e300)
    return Learned(artifact=make_artifact(untrained(0, 50.0)._replace(tolls=table), *ranges, {}))


def _identity(name_hash: int, model: str) -> float:
    return float(hash_draw(np.array([name_hash], np.uint64), np.uint64(model_hash_of(model)))[0])


def write_weights(path: Path, beta: float = 20.0, **highest: float) -> str:
    """Write it as training would that has seen up to 20 of each feature, or as `highest` says; returns its digest."""
    seen = np.array([highest.get(feature.name, 20.0) for feature in FEATURES])
    artifact = make_artifact(untrained(beta=beta), np.zeros(len(FEATURES)), seen, {})
    path.write_bytes(write_artifact(artifact))
    return artifact.digest
