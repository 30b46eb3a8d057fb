"""A trained policy as one file: arrays and a record, in NumPy's own format, read without torch or pickle.

The file is a zip of `.npy` arrays (`numpy.savez`): the network's weights, the numbers and tolls of the cost, the range
of each input in training, and `record`, a JSON text in bytes: feature schema and its hash, what was trained how
(command, seed, scenarios, git hash), what came out (scoreboard), and a checksum over the arrays.
"""

import dataclasses
import hashlib
import io
import json
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from policies.base import FloatArray
from policies.learned.features import DEFAULT_NUMBERS, FEATURES, NO_TOLLS, SCHEMA
from policies.learned.network import Network, shapes

_FORMAT = 2
_UNREADABLE = (
    *(ValueError, KeyError, TypeError, AttributeError, OSError, EOFError, MemoryError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, SyntaxError),
)
"""What NumPy, zipfile and json raise for a file that is something else, or was cut, or has bytes changed."""
_NARROWEST = 0.1
"""Least width of a range: an input that never moved in training is not strange for moving a little."""
EVERYTHING: tuple[FloatArray, FloatArray] = np.zeros(len(FEATURES)), np.full(len(FEATURES), 1e300)
"""The range where no input is strange."""


@dataclasses.dataclass(frozen=True, eq=False)
class Artifact:
    """What a file holds; equal where the digest is."""

    network: Network
    lowest: FloatArray
    """Of each input in training, but for the outermost 0.001%; `(f,)`."""
    highest: FloatArray
    record: Mapping[str, Any]
    """JSON-like; for people."""
    digest: str
    """SHA-256 of the arrays, hexadecimal."""

    @property
    def width(self) -> FloatArray:
        """Of each input's range, `(f,)`."""
        return np.maximum(self.highest - self.lowest, _NARROWEST)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Artifact) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def make_artifact(network: Network, lowest: FloatArray, highest: FloatArray, record: Mapping[str, Any]) -> Artifact:
    arrays = {**network._asdict(), "lowest": lowest, "highest": highest}
    return Artifact(network, lowest, highest, dict(record), _digest(arrays))


def write_artifact(artifact: Artifact) -> bytes:
    """The file; equal artifacts and records give equal bytes."""
    record = {
        "format": _FORMAT,
        "schema": {"hash": SCHEMA, "features": [feature.described() for feature in FEATURES]},
        "digest": artifact.digest,
        **artifact.record,
    }
    text = np.frombuffer(json.dumps(record, sort_keys=True).encode(), np.uint8)
    out = io.BytesIO()
    arrays = artifact.network._asdict()
    np.savez_compressed(out, **arrays, lowest=artifact.lowest, highest=artifact.highest, record=text)
    return out.getvalue()


def read_artifact(content: bytes, name: str) -> Artifact:
    """What is in the file `name`.

    Raises:
        ValueError: it is no such file, or another schema's, or damaged, or its numbers are not finite; with the remedy.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        record = json.loads(arrays.pop("record").tobytes())
        schema, digest = record["schema"]["hash"], record["digest"]
    except _UNREADABLE as error:
        # Of a text file NumPy says how to load it as a pickle, unsafely: no advice for an operator.
        why = "" if "pickle" in str(error) else f" ({error})"
        raise ValueError(f"{name} is not a policy that `balancer train` wrote{why}; name one that is") from error
    if schema != SCHEMA:
        raise ValueError(
            f"{name} was trained on other inputs (feature schema {schema}, this version has {SCHEMA}); "
            "train it anew with `balancer train`, or use the version that wrote it"
        )
    _check_shapes(arrays, name)
    if _digest(arrays) != digest:
        raise ValueError(f"{name} is damaged: its checksum does not match; copy it anew")
    for key, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(
                f"{name} has numbers in {key} that are not finite; train it anew, from an earlier checkpoint"
            )
    if not arrays["beta"] > 0:
        raise ValueError(f"{name} has beta {float(arrays['beta'])}, must be above 0; train it anew")
    tolls = arrays["tolls"]
    if (np.diff(tolls[:, 0]) <= 0).any() or (tolls[-1:] != NO_TOLLS).any() or (tolls < 0).any():
        raise ValueError(f"{name} has tolls out of order, or below 0; train it anew with `balancer train`")
    lowest, highest = arrays.pop("lowest"), arrays.pop("highest")
    return Artifact(Network(**arrays), lowest, highest, record, digest)


def _check_shapes(arrays: Mapping[str, FloatArray], name: str) -> None:
    hidden = arrays["b1"].size if "b1" in arrays else 0
    lines = len(arrays["tolls"]) if "tolls" in arrays and arrays["tolls"].ndim else 0
    expected = {
        **shapes(hidden),
        **{"numbers": DEFAULT_NUMBERS.shape, "tolls": (max(lines, 1), 2)},
        **{"lowest": (len(FEATURES),), "highest": (len(FEATURES),)},
    }
    found = {key: array.shape if array.dtype == np.float64 else array.dtype for key, array in arrays.items()}
    if wrong := sorted(key for key in expected.keys() | found.keys() if found.get(key) != expected.get(key)):
        key = wrong[0]
        raise ValueError(
            f"{name} has {key} as {found.get(key, 'nothing')}, expected {expected.get(key, 'nothing')}; "
            "it was written by another version, or by hand: train it anew with `balancer train`"
        )


def _digest(arrays: Mapping[str, FloatArray]) -> str:
    digest = hashlib.sha256()
    for key in sorted(arrays):
        digest.update(key.encode() + str(arrays[key].shape).encode())
        digest.update(np.ascontiguousarray(arrays[key], "<f8").tobytes())
    return digest.hexdigest()
