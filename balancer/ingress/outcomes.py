"""What the listener's answer means for a message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MAX_ANSWER_BYTES = 80 * 2**20
MAX_REASON_BYTES = 500
MAX_CALL_S = 600.0
MAX_WAIT_S = 60.0
_PASSING = frozenset((429, 503))
"""Whoever gets one of these may come again: the request was not begun with."""
_PERHAPS = frozenset((404, 408, 409, 425, 500, 502, 504))
"""Whoever gets one of these may come again, some times: it was perhaps begun with, or the fleet is just starting."""
_OF_MODEL = 3
"""So much does a model's own failure count beside a lost worker."""
_BEGUN = ("before headers", "connection termination")
"""What Envoy's answer says where the connection to a worker broke after the request was sent there."""


@dataclass(frozen=True, slots=True)
class Answer:
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Failure:
    reason: str
    final: bool
    """Whether it would fail again in the same way."""
    begun: int = 1
    """By how much it is more probable that no worker can answer it; 0: none has begun with it."""
    after_s: float = 0.0
    """What the listener asks to wait for."""


LATE = Failure("no answer in time", final=False)


def refusal(status: int, said: str, after_s: float) -> Failure:
    """What an answer of this HTTP status means; `said`: its body's beginning."""
    words = " ".join(said.split())
    begun = _OF_MODEL if status == 500 else int(status in _PERHAPS or any(each in said for each in _BEGUN))
    reason = f"the listener answers {status}: {words}"
    return Failure(reason, status not in _PASSING | _PERHAPS, begun, min(after_s, MAX_WAIT_S))


def unreached(listener: str, why: object) -> Failure:
    return Failure(f"nobody answers at {listener}: {why}", final=False, begun=0)


def broken(why: object) -> Failure:
    return Failure(f"the connection to the listener broke: {why}"[:MAX_REASON_BYTES], final=False)
