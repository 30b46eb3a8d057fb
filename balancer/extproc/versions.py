"""The version that is written into a request that names none: its model is split, or the model table pins versions.

Where a gateway hands over a request's path or the start of its body, it is written here. Of a gRPC message
only the start has to be there: protobuf takes the last of a field that comes twice, so a version that the client names
behind it stays in force.
"""

from __future__ import annotations

import re

from balancer.bounds import OutOfBoundsError
from balancer.extproc import wire
from balancer.scheduler.fleet import Fleet
from balancer.scheduler.worker import latest

MAX_VERSION_DIGITS = 19
"""Triton's versions are signed integers of 64 bits."""
FRAME_BYTES = 5
"""What precedes each message of gRPC: whether it is compressed, and its length in four bytes, big-endian.
https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md"""
_MOST_MESSAGE = 2**32 - 1
VERSION_FIELD = 2
"""Of ModelInferRequest: https://github.com/triton-inference-server/common, grpc_service.proto."""
_MOST_FIELDS = 64
"""That are looked at."""
_MODEL_IN_PATH = re.compile(r"(/[^/?]+){3}(?=/)")
"""Up to the model; whatever is encoded in it."""

COMPRESSED = "compressed"
NO_BODY = "no_body"
UNREADABLE = "unreadable"


class LeftError(Exception):
    """A message that stays as it is."""

    def __init__(self, why: str = "") -> None:
        """`why`: a label; empty: it names a version itself."""
        super().__init__(why)
        self.why = why


def framed_with_version(body: bytes, version: str) -> bytes:
    """The start of the body of a gRPC request, for that version.

    Raises:
        LeftError: it names one already, or nothing can be written into it.
    """
    if len(body) < FRAME_BYTES:
        raise LeftError(UNREADABLE)
    if body[0]:
        raise LeftError(COMPRESSED)
    message = body[FRAME_BYTES:]
    if _names_version(message):
        raise LeftError
    field = wire.tagged(VERSION_FIELD, version.encode())
    length = int.from_bytes(body[1:FRAME_BYTES], "big") + len(field)
    if length > _MOST_MESSAGE:
        raise LeftError(UNREADABLE)
    return b"".join((body[:1], length.to_bytes(FRAME_BYTES - 1, "big"), field, message))


def path_with_version(path: str, version: str) -> str:
    """The path of a REST inference, for that version."""
    found = _MODEL_IN_PATH.match(path)
    return path if found is None else f"{found[0]}/versions/{version}{path[found.end() :]}"


def _names_version(message: bytes) -> bool:
    """Whether its first fields, as far as they are there, name one. The last of them may be cut."""
    try:
        for count, part in enumerate(wire.parts(message)):
            if part.number == VERSION_FIELD:
                return part.end > part.start
            if count == _MOST_FIELDS:
                break
    except OutOfBoundsError:
        pass
    return False


def pinned_version(fleet: Fleet, model: str) -> str:
    """The version to be written into a request; empty: none, as it is not pinned or Triton's choice is permitted.

    Triton gives a request that names none the latest version that is loaded, which the model table may not permit. The
    one version that is pinned, or the latest of several that is loaded, where some worker has a later one that is
    not permitted. None where workers have the model, but no permitted version of it: then nobody may serve it.
    """
    row = fleet.settings.models.get(model)
    if row is None or not row.versions:
        return ""
    loaded = [worker.versions[model] for worker in fleet.workers if model in worker.versions]
    permitted = {version for versions in loaded for version in versions if version in row.versions}
    if len(row.versions) == 1:
        found = row.versions[0] if permitted or not loaded else ""
    else:
        beyond = any(latest(versions) not in permitted and not permitted.isdisjoint(versions) for versions in loaded)
        found = latest(permitted) if beyond else ""
    return found if found.isascii() and found.isdigit() and len(found) <= MAX_VERSION_DIGITS else ""
