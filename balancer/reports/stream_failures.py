"""What keeps an agent from a balancer, in words: cause and remedy, logged once and again each minute while it lasts."""

import logging
import math
from dataclasses import dataclass

import grpc

from balancer.balancer_tls import BalancerTls

logger = logging.getLogger(__name__)

_REPEAT_S = 60.0
_NO_TLS = "speaks plain text and not TLS; leave --tls-ca out, or give the balancer a certificate"
_CAUSES = (
    # What gRPC says, in whole or in part; what it means.
    ("Connection refused", "nothing listens there; is the balancer up, and is this the port where it takes reports?"),
    ("No such file", "nothing listens there; is the balancer up, and is this the socket where it takes reports?"),
    ("Permission denied", "the socket may not be opened; run agent and balancer as users that may share it"),
    ("WRONG_VERSION_NUMBER", _NO_TLS),
    ("CERTIFICATE_VERIFY_FAILED: certificate has expired", "the balancer's certificate has expired; renew it"),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "the balancer's certificate is not signed by what --tls-ca holds; give the authority that signed it",
    ),
    (
        "certificate signature failure",
        "the balancer's certificate is signed by another key than --tls-ca holds of its authority; renew the file",
    ),
    ("Hostname Verification", "the balancer's certificate does not name what --tls-name says; give a name that it has"),
    (
        "security handshaker",
        "the TLS files hold no usable certificate or key; --tls-ca, --tls-cert and --tls-key are PEM",
    ),
    ("imed out", "no answer; do a firewall or a wrong address stand between?"),
    ("imeout", "no answer; do a firewall or a wrong address stand between?"),
    ("No route", "no way there; do a firewall or a wrong address stand between?"),
    ("nreachable", "no way there; do a firewall or a wrong address stand between?"),
)
_HUNG_UP = ("Socket closed", "Connection reset", "Broken pipe", "recvmsg")
_HUNG_UP_ON = {
    "plain": "the balancer hangs up on plain text; give --tls-ca and --tls-name if it wants TLS",
    "no certificate": "the balancer hangs up; give --tls-cert and --tls-key if it wants a certificate",
    "certificate": "the balancer hangs up on the certificate shown; is it expired, or its authority not trusted?",
}
_ENDED = {
    grpc.StatusCode.UNIMPLEMENTED: "no reports are taken there; give the port that the balancer's config names for it",
    grpc.StatusCode.PERMISSION_DENIED: "the balancer refuses this agent",
    grpc.StatusCode.UNAUTHENTICATED: "the balancer refuses this agent",
    grpc.StatusCode.INVALID_ARGUMENT: "the balancer refuses the report; do both have the same version?",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "the balancer has no room for this agent",
    grpc.StatusCode.ABORTED: "taken over",
    grpc.StatusCode.DEADLINE_EXCEEDED: "the balancer heard nothing in time; is this machine overloaded?",
}


@dataclass(frozen=True, slots=True)
class StreamFailure:
    cause: str
    """With the remedy; the same for the same cause."""
    details: str = ""
    code: grpc.StatusCode | None = None


def shown_to(tls: BalancerTls | None) -> str:
    """What a balancer gets to see of whoever connects so."""
    if tls is None:
        return "plain"
    return "certificate" if tls.certificate else "no certificate"


def explain(code: grpc.StatusCode, details: str, shown: str) -> StreamFailure:
    """What a call's end means.

    Args:
        code: Of the call.
        details: Of the call.
        shown: As `shown_to` has it.
    """
    cause = _ENDED.get(code, "")
    if code is grpc.StatusCode.UNAVAILABLE:
        cause = next((meaning for part, meaning in _CAUSES if part in details), "")
        if not cause and any(part in details for part in _HUNG_UP):
            cause = _HUNG_UP_ON[shown]
    return StreamFailure(cause or "the stream broke", f"{code.name} {details}", code)


class StreamStatus:
    def __init__(self, address: str, what: str = "reports to balancer") -> None:
        """`what` the stream carries, and to whom."""
        self._address, self._what = address, what
        self._cause = ""
        self._at_s = -math.inf
        self._times = 0

    def failed(self, failure: StreamFailure, now_s: float) -> None:
        """Log it unless the same was said within the last minute."""
        self._times += 1
        if failure.cause == self._cause and now_s - self._at_s < _REPEAT_S:
            return
        self._cause, self._at_s = failure.cause, now_s
        logger.warning(
            "no %s %s: %s",
            self._what,
            self._address,
            failure.cause,
            extra={"details": failure.details, "attempts": self._times},
        )

    def connected(self) -> None:
        logger.info("%s %s: connected", self._what, self._address)

    def well(self) -> None:
        """It has done so for a while: the next failure is news again."""
        self._cause, self._at_s, self._times = "", -math.inf, 0
