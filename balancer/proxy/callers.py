"""Which headers tell callers apart, where several requests are to have one execution.

A Triton may restrict calls by any header, and hand any header to its models. So all that go on to the worker count but
those that say by which way a request came, or where and how soon it is to go: they differ between requests of one
caller, also where it sends the same again.
"""

from __future__ import annotations

import hashlib

from balancer.channels import restricted
from balancer.extproc.names import GATEWAY_REQUEST_ID_HEADER, REQUEST_ID_HEADER, TRACE_HEADER, TRACE_STATE_HEADER
from balancer.proxy.messages import Arrived, Metadata
from balancer.proxy.settings import ProxySettings

_OF_THE_WAY = frozenset(
    (
        *(REQUEST_ID_HEADER, GATEWAY_REQUEST_ID_HEADER, TRACE_HEADER, TRACE_STATE_HEADER),
        *("b3", "x-b3-traceid", "x-b3-spanid", "x-b3-parentspanid", "x-b3-sampled", "x-b3-flags", "x-ot-span-context"),
        # An address is a proxy's as often as a client's: sent again, a request may come by another one.
        *("x-forwarded-for", "x-forwarded-proto"),
    )
)


class Callers:
    def __init__(self) -> None:
        self.configure(ProxySettings())

    def configure(self, settings: ProxySettings) -> None:
        names = settings.names
        self._left_out = _OF_THE_WAY | {*settings.proxy.ignored_headers, names.rows, names.priority, names.deadline}

    def headers(self, arrived: Arrived) -> Metadata:
        """Those that count, as they go on to the worker."""
        there = frozenset(arrived.metadata)

        def counts(name: str, value: str | bytes) -> bool:
            plain = restricted.plain_name(name)
            # One in gRPC's form is a copy of ours where the other is there as well; else it may open a Triton.
            return (plain if (plain, value) in there else name) not in self._left_out

        return tuple((name, value) for name, value in arrived.metadata if counts(name, value))

    def key(self, arrived: Arrived) -> bytes:
        """Equal for requests of one caller, whatever the protocol; of bounded size."""
        headers = self.headers(arrived)
        there = frozenset(headers)
        # A copy says nothing new: who sends the one could have sent the other.
        counted = [
            (name, value)
            for name, value in headers
            if (plain := restricted.plain_name(name)) == name or (plain, value) not in there
        ]
        counted.sort(key=lambda header: header[0])  # the order of those of one name stays, as a worker may go by it
        return hashlib.blake2b(repr(counted).encode("utf-8", "backslashreplace"), digest_size=32).digest()
