"""What the way a request ended says of its worker."""

from __future__ import annotations

from balancer.core.events import Void

# https://grpc.github.io/grpc/core/md_doc_statuscodes.html
_GRPC_OK, _GRPC_DEADLINE_EXCEEDED = 0, 4
# UNAVAILABLE, DATA_LOSS.
_GRPC_FAULTS = frozenset({14, 15})
# UNKNOWN, INTERNAL: also what Triton says where a model or its own parser fails at an input.
_GRPC_FAILED_AT_IT = frozenset({2, 13})
_HTTP_FAULTS = frozenset({502, 503})
_HTTP_FAILED_AT_IT = frozenset({500})
_HTTP_TIMEOUTS = frozenset({504})
_MOST_DIGITS = 3


def code(text: str, absent: int = -1) -> int:
    """A status of gRPC or HTTP as it stands in a header; `absent` for what is none."""
    return int(text) if len(text) <= _MOST_DIGITS and text.isascii() and text.isdigit() else absent


def verdict(grpc_status: int, http_status: int) -> tuple[bool, Void]:
    """Whether the worker did what it was asked, and, where that cannot be told, who ended the request.

    Against the worker speak UNAVAILABLE and DATA_LOSS, in REST 502 and 503. UNAVAILABLE is also what Triton says when its
    queue is full: that is a fast answer, and a worker that refuses must not look better for it than one that serves.
    INTERNAL, UNKNOWN and 500 may be the worker's fault or the request's (Triton answers 500 to JSON that it cannot
    parse): the router tells them apart by who chose the worker. What the client got wrong (INVALID_ARGUMENT, NOT_FOUND,
    4xx), and a client that left, say nothing of the worker: taken for answers, they would make it look fast. Nor does a
    deadline that passed.

    Args:
        grpc_status: -1: none is known; then HTTP's decides.
        http_status: 0: none came, since the client left before.
    """
    if grpc_status >= 0:
        if grpc_status == _GRPC_OK:
            return True, ""
        if grpc_status in _GRPC_FAULTS:
            return False, ""
        if grpc_status in _GRPC_FAILED_AT_IT:
            return False, "request"
        return False, "deadline" if grpc_status == _GRPC_DEADLINE_EXCEEDED else "client"
    if 200 <= http_status < 300:
        return True, ""
    if http_status in _HTTP_FAULTS:
        return False, ""
    if http_status in _HTTP_FAILED_AT_IT:
        return False, "request"
    return False, "deadline" if http_status in _HTTP_TIMEOUTS else "client"
