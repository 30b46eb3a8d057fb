"""What may be changed at the admin port, and by whom: workers are drained by hand, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from balancer.core import bounds
from balancer.core.bounds import OutOfBoundsError
from balancer.operate.drains import Drains, UnknownWorkerError

READ = ("GET", "HEAD")
CHANGE = "POST"
METHODS: Mapping[str, tuple[str, ...]] = {"/drain": (*READ, CHANGE), "/undrain": (CHANGE,)}
"""Of the paths at which something may be changed."""


def refusal(request: web.BaseRequest, *, known: bool, local: bool) -> str:
    """Why a request may change nothing; empty: it may.

    `known`: who gets so far has shown the token or an admin's certificate. `local`: only this machine reaches the port.
    Without either, whoever is on this machine may, as they may report in any worker's name there; a web page that a
    browser on it has open may not, and pages always send `Origin`.
    """
    if "Origin" in request.headers:
        return "changes are not taken from web pages; use `balancer drain`"
    if not known and not local:
        return (
            "listen.admin is open to other machines, and nobody has to show who they are: set admin.token_file, or "
            "tls.admin with a client_ca_file, or listen on 127.0.0.1"
        )
    return ""


def change(drains: Drains, request: web.BaseRequest, by: str) -> tuple[int, dict[str, Any]]:
    """Do what is asked, for `by`; the status and the answer. OutOfBoundsError where the question is none."""
    if unknown := sorted(set(request.query) - {"worker"}):
        raise OutOfBoundsError("parameter", unknown[0], "must be worker")
    worker = bounds.text("worker", request.query.get("worker", ""))
    if not worker:
        raise OutOfBoundsError("worker", worker, f"must be given: {request.path}?worker=NAME, as in /workers")
    try:
        if request.method != CHANGE:
            return 200, drains.state(worker)
        return 200, (drains.drain if request.path == "/drain" else drains.undrain)(worker, by)
    except UnknownWorkerError as error:
        return 404, {"error": str(error)}
