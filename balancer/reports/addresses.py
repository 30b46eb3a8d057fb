"""A stream to every address that names stand for, for as long as they do."""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Generic, NoReturn, Protocol, TypeVar

from balancer.errors import OperatorError
from balancer.files.schema import UNIX

logger = logging.getLogger(__name__)

_RESOLVE_PERIOD_S = 5.0


def check_targets(option: str, targets: Sequence[str], example: str) -> None:
    """As `check_address` of each that is no `unix:/path`."""
    for target in targets:
        if not target.startswith(f"{UNIX}/"):
            check_address(option, target, example)


def check_address(option: str, address: str, example: str) -> None:
    """Raises OperatorError, which names the option, where it is not `host:port`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise OperatorError(f"{option}: {address!r} is not host:port; write it like {example}")


class Stream(Protocol):
    wanted: bool
    """Cleared once no name resolves to its address: it then ends when it breaks."""

    async def run(self) -> None: ...


S = TypeVar("S", bound=Stream)


class Streams(Generic[S]):
    def __init__(self, targets: Sequence[str], made: Callable[[str], S]) -> None:
        """`targets` are `host:port` or `unix:/path`; a name with several addresses stands for as many. `made` makes the
        stream to an address, `ip:port` or `unix:/path`; it is run until it ends."""
        self._targets, self._made = tuple(targets), made
        self.by_address: dict[str, S] = {}
        self._unresolved: set[str] = set()

    async def run(self) -> NoReturn:
        """Resolve the targets, now and then again, and stream to what they resolve to; until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                addresses = {address for target in self._targets for address in await self._resolve(target)}
                if not self._unresolved:
                    for address, stream in self.by_address.items():
                        stream.wanted = address in addresses
                for address in addresses - self.by_address.keys():
                    group.create_task(self._stream(address))
                await asyncio.sleep(_RESOLVE_PERIOD_S)

    async def _stream(self, address: str) -> None:
        stream = self.by_address[address] = self._made(address)
        try:
            await stream.run()
        finally:
            del self.by_address[address]

    async def _resolve(self, target: str) -> set[str]:
        if target.startswith(UNIX):
            return {target}
        host, _, port = target.rpartition(":")
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except OSError as error:
            if target not in self._unresolved:
                logger.warning("balancer %s cannot be resolved, trying again: %s", target, error)
            self._unresolved.add(target)
            return set()
        self._unresolved.discard(target)
        return {f"[{address[0]}]:{port}" if ":" in str(address[0]) else f"{address[0]}:{port}" for *_, address in found}
