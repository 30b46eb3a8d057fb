"""Paths of Triton's HTTP interface that concern the fleet, and which call of gRPC each is."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

_MODEL = r"/v2/models/(?P<model>[^/]+)"
_MEMORY = r"/v2/(?P<kind>system|cuda)sharedmemory(/region/(?P<region>[^/]+))?"
_CALLS = {
    r"/v2": ("GET", "ServerMetadata"),
    r"/v2/health/live": ("GET", "ServerLive"),
    r"/v2/health/ready": ("GET", "ServerReady"),
    r"/v2/models/stats": ("GET", "ModelStatistics"),
    r"/v2/repository/index": ("POST", "RepositoryIndex"),
    r"/v2/logging": ("GET|POST", "LogSettings"),
    rf"(/v2|{_MODEL})/trace/setting": ("GET|POST", "TraceSetting"),
    rf"{_MODEL}(/versions/(?P<version>[^/]+))?": ("GET", "ModelMetadata"),
    rf"{_MODEL}(/versions/(?P<version>[^/]+))?/ready": ("GET", "ModelReady"),
    rf"{_MODEL}(/versions/(?P<version>[^/]+))?/config": ("GET", "ModelConfig"),
    rf"{_MODEL}(/versions/(?P<version>[^/]+))?/stats": ("GET", "ModelStatistics"),
    r"/v2/repository/models/(?P<model>[^/]+)/load": ("POST", "RepositoryModelLoad"),
    r"/v2/repository/models/(?P<model>[^/]+)/unload": ("POST", "RepositoryModelUnload"),
    rf"{_MEMORY}/status": ("GET", "SharedMemoryStatus"),
    rf"{_MEMORY}/register": ("POST", "SharedMemoryRegister"),
    rf"{_MEMORY}/unregister": ("POST", "SharedMemoryUnregister"),
}
_PATTERNS = tuple((re.compile(pattern), *call) for pattern, call in _CALLS.items())


class Asked(NamedTuple):
    """What a path asks for."""

    call: str
    """As gRPC names it."""
    methods: str
    """Of HTTP, that it may be asked by, with a bar between them."""
    name: str
    """Of the model or region; empty: none."""
    version: str = ""


def asked_by(path: str) -> Asked | None:
    """What a path asks for; None: nothing that is known."""
    decoded = unquote(path, errors="surrogateescape")
    if decoded.count("/") != path.count("/") or not decoded.isprintable():
        return None
    for pattern, methods, call in _PATTERNS:
        if match := pattern.fullmatch(decoded):
            found = match.groupdict()
            kind = found.get("kind")
            named = f"{kind.title()}{call}" if kind else call
            return Asked(named, methods, found.get("model") or found.get("region") or "", found.get("version") or "")
    return None
