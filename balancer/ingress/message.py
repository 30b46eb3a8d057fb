"""A request as a message of a topic, what becomes of it, and what a broker has to do for that."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from balancer.errors import OperatorError

MAX_ID_BYTES = 256
NO_ID = "invalid-"
"""What the id of a message begins with whose own is none, before a hash of that."""
_ID = re.compile(rf"[!-~]{{1,{MAX_ID_BYTES}}}")
ID_HEADER, KEY_HEADER = "x-request-id", "x-routing-key"
EXECUTION_HEADER, SEQUENCE_HEADER = "x-execution", "x-sequence"

Fate = Literal["answered", "dead", "known"]
"""What a message ends as: its answer is published; it and the reason are among the dead letters; its id was answered
before, so nothing is published."""


def safe_id(given: str) -> str:
    """The id as its producer gave it, where brokers and the listener can take it."""
    return (
        given if _ID.fullmatch(given) else NO_ID + hashlib.sha256(given.encode(errors="surrogatepass")).hexdigest()[:32]
    )


def without_password(url: str) -> str:
    """A broker's URL for people to read."""
    scheme, separator, place = url.partition("://")
    return f"{scheme}{separator}{place.rpartition('@')[2].partition('?')[0]}"


class BrokerError(Exception):
    """The broker does not do it now, and may later; the message says what and why."""


class BrokerRefusesError(OperatorError):
    """The broker will never do it; the message names what is wrong, and the remedy."""


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    id: str
    """The request's, as `safe_id` makes it. At most one answer with it is published."""
    body: bytes
    headers: Mapping[str, str]
    """Names in lower case."""
    published_s: float
    """Unix time."""
    position: Any
    """What the broker knows it by."""
    deliveries: int = 1
    """How often the broker has handed it out, this time included."""
    key: str = ""
    """Messages of one key are served in their order where that is asked; empty: of none."""
    known: bool = False
    """Whether its answer is published already."""


@dataclass(frozen=True, slots=True)
class Topics:
    """What an ingress reads and writes, the same whatever the broker is."""

    requests: str
    answers: str
    dead_letters: str
    group: str
    """Ingresses of one group share the requests."""
    in_order: bool = False
    """Whether messages of one key are served one after another, a restart included."""
    lease_s: float = 30.0
    name: str = ""
    """The ingress's own; no other of its group has it."""
    events: str = ""
    """Where events of streamed answers go; empty: nowhere."""

    def of(self, fate: Fate) -> str:
        return self.dead_letters if fate == "dead" else self.answers


@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    message: Message
    fate: Fate
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """Of a streamed answer."""

    message: Message
    execution: str
    """Which call of the message it is of: another one's events begin the answer anew."""
    sequence: int
    """From 0 on."""
    data: bytes

    @property
    def headers(self) -> dict[str, str]:
        return {ID_HEADER: self.message.id, EXECUTION_HEADER: self.execution, SEQUENCE_HEADER: str(self.sequence)}


class Broker(Protocol):
    """Takes requests of one topic and publishes what they end as, each id once, whoever dies in between.

    Any of these raises BrokerError where the broker does not answer or has no time; whoever calls tries again.
    """

    lease_s: float
    """After so many seconds without `keep` the broker hands a message to somebody else."""
    max_body_bytes: int
    """That a message published may have."""

    async def open(self) -> None:
        """Raises BrokerRefusesError, too."""

    async def take(self, most: int) -> Sequence[Message]:
        """The next messages, at most so many; waits some seconds for the first."""

    async def settle(self, ended: Sequence[Settled]) -> Sequence[tuple[Settled, bool]]:
        """Publish what they end as, and have the broker hand them out no more; both or neither.

        Returns those that this is done for, earlier ones that had to wait among them; and of each whether it was
        published now: False where another had done it.
        """

    async def tell(self, events: Sequence[Event]) -> None:
        """Publish them in this order, beside all else; where it fails, some may be published."""

    async def keep(self, held: Sequence[Message]) -> None:
        """They are still worked on."""

    async def lag(self) -> int:
        """Messages that nothing has become of yet, whichever ingress of the group has them."""

    async def close(self) -> None: ...
