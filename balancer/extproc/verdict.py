"""What the way a request ended says of its worker."""

from __future__ import annotations

from typing import Literal

from balancer.scheduler.events import Void

Verdict = tuple[bool, Void]
"""Whether the worker did its work, and, where that says nothing of it, who ended the request."""

_ANSWER: Verdict = (True, "")
_FAULT: Verdict = (False, "")
_FAILED_AT_IT: Verdict = (False, "request")
_LATE: Verdict = (False, "deadline")
_CLIENTS: Verdict = (False, "client")
# OK, DEADLINE_EXCEEDED; CANCELLED, UNAVAILABLE, DATA_LOSS; UNKNOWN, INTERNAL: https://grpc.github.io/grpc/core/md_doc_statuscodes.html
OF_GRPC = {0: _ANSWER, 4: _LATE, 1: _FAULT, 14: _FAULT, 15: _FAULT, 2: _FAILED_AT_IT, 13: _FAILED_AT_IT}
OF_HTTP: dict[int, Verdict] = {502: _FAULT, 503: _FAULT, 504: _LATE, 500: _FAILED_AT_IT}
OF_HTTP |= dict.fromkeys(range(200, 300), _ANSWER)
By = Literal["", "client", "worker", "deadline", "gateway"]
"""Who ended a request before its worker had answered it: the worker also for the way to it, the gateway where it had no
room. Empty: nobody did."""
OF_ABORTED: dict[By, Verdict] = {"client": _CLIENTS, "worker": _FAULT, "deadline": _LATE, "gateway": _CLIENTS}
_MOST_DIGITS = 3
_NOT_FOUND_GRPC, _NOT_FOUND_HTTP = 5, 404


def code(text: str, absent: int = -1) -> int:
    """A status of gRPC or HTTP as it stands in a header; `absent` for what is none."""
    return int(text) if len(text) <= _MOST_DIGITS and text.isascii() and text.isdigit() else absent


def verdict(grpc_status: int, http_status: int) -> Verdict:
    """What a status says of the worker that gave it.

    CANCELLED is what a worker answers as it stops: a client that leaves gets no answer, which `By` tells. UNAVAILABLE
    is also what Triton says when its queue is full: that is a fast answer, and a worker that refuses must not look
    better for it than one that serves. INTERNAL, UNKNOWN and 500 may be the worker's fault or the request's (Triton
    answers 500 to JSON that it cannot parse): the router tells them apart by who chose the worker. What the client got
    wrong (INVALID_ARGUMENT, NOT_FOUND, 4xx), and a client that left, say nothing of the worker: taken for answers, they
    would make it look fast. Nor does a deadline that passed.

    Args:
        grpc_status: -1: none is known; then HTTP's decides.
        http_status: 0: none came, since the client left before.
    """
    return OF_GRPC.get(grpc_status, _CLIENTS) if grpc_status >= 0 else OF_HTTP.get(http_status, _CLIENTS)


def of_version(grpc_status: int, http_status: int, by: By = "") -> bool | None:
    """Whether the version of the model that a request got did its work; None: the end says nothing of it.

    Unlike a worker, a version speaks by NOT_FOUND, as it may not be there, and by a deadline that passed.

    Args:
        grpc_status: As in `verdict`.
        http_status: As in `verdict`.
        by: Who ended the request before it was answered.
    """
    if not by and (grpc_status == _NOT_FOUND_GRPC if grpc_status >= 0 else http_status == _NOT_FOUND_HTTP):
        return False
    ok, void = OF_ABORTED[by] if by else verdict(grpc_status, http_status)
    return None if void == "client" else ok
