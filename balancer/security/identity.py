"""Who a peer is: the names in its certificate, which TLS has checked, and what they allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from balancer.config.listen import WORKER


class _Context(Protocol):
    def auth_context(self) -> Mapping[str, Any]:
        """What TLS knows of the peer; empty without TLS."""


def names(context: _Context) -> frozenset[str]:
    """The subject alternative names, URI and DNS, of the certificate that the peer of a gRPC call showed."""
    known = context.auth_context()
    # Not x509_subject_alternative_name: there, e-mail and IP addresses are mixed with them.
    return frozenset(name.decode("utf-8", "replace") for key in ("peer_uri", "peer_dns") for name in known.get(key, ()))


def names_of(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """The same of a certificate as `ssl.SSLSocket.getpeercert` gives it; None: the peer showed none."""
    entries = (certificate or {}).get("subjectAltName", ())
    return frozenset(name for kind, name in entries if kind in ("URI", "DNS"))


def has_role(known: frozenset[str], role: str) -> bool:
    """Whether one of the names is `role`, in which `{worker}` stands for any name."""
    before, worker, after = role.partition(WORKER)
    if not worker:
        return role in known
    shortest = len(before) + len(after)
    return any(len(name) > shortest and name.startswith(before) and name.endswith(after) for name in known)


def speaker(role: str | None) -> Callable[[Any, str], str]:
    """Who may report on which worker where clients have `role`, with `{worker}` in it; None: without TLS, anybody may.

    The rule takes a call's context and a worker's name, and says why the caller may not; empty: it may.
    """

    def may_speak(context: _Context, worker: str) -> str:
        if role is None:
            return ""
        wanted = role.replace(WORKER, worker)
        return "" if wanted in names(context) else f"the certificate has no subject alternative name {wanted}"

    return may_speak
