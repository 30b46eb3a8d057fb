"""Headers by which clients make calls that a Triton restricts, in the form of either protocol."""

import re
from collections.abc import Iterable
from typing import Any

Headers = tuple[tuple[str, str], ...]

_GRPC = "triton-grpc-protocol-"
_OF_THE_WAY = re.compile(
    r"host|connection|keep-alive|te|upgrade|transfer-encoding|content-.*|accept.*|user-agent|cookie|authorization|expect"
    r"|x-request-id|x-forwarded-.*|x-envoy-.*|x-gateway-.*|x-ot-.*|traceparent|tracestate|grpc-.*",
    re.IGNORECASE,
)
"""Headers that concern the way, and no worker. Any other may be one that a Triton restricts calls by."""
_KEY = re.compile(r"[0-9a-z_.-]{1,64}")
_VISIBLE = re.compile(r"[\x20-\x7e]{0,1024}")


_REFUSAL = "This protocol is restricted"
_FORBIDDEN = 403


def status_of(words: str) -> int:
    """What Triton says by HTTP where it says UNAVAILABLE with such words by gRPC; 0: these are others."""
    return _FORBIDDEN if words.startswith(_REFUSAL) else 0


def of_grpc(headers: Iterable[tuple[str, Any]]) -> Headers:
    return tuple(sorted((name, value) for name, value in headers if name.startswith(_GRPC) and isinstance(value, str)))


def of_http(headers: Iterable[tuple[str, str]]) -> Headers:
    """Those that may be among the headers of a client of HTTP; names in lower case."""
    return tuple(sorted((key.lower(), value) for key, value in headers if not _OF_THE_WAY.fullmatch(key)))


def plain_name(name: str) -> str:
    """The name of a header of gRPC, less what says that calls may be restricted by it."""
    return name.removeprefix(_GRPC)


def as_grpc(headers: Iterable[tuple[str, str]]) -> Headers:
    """Headers of HTTP as those of gRPC: a Triton that restricts both by one key has it in either. Left out is what gRPC
    cannot carry."""
    return tuple((f"{_GRPC}{key}", value) for key, value in headers if can_go(key, value))


def can_go(key: str, value: str) -> bool:
    """Whether gRPC can carry a header of HTTP, and its name ends as that of bytes does not."""
    return bool(_KEY.fullmatch(key) and _VISIBLE.fullmatch(value)) and not key.endswith("-bin")
