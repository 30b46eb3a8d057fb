"""Workers from a name in DNS, such as a headless service's: every address that it has is one. Asked again and again."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncGenerator, Callable, Iterable

from balancer.discovery.pods.pod import is_of_a_pod
from balancer.discovery.workers import TRITON_PORTS, Ports, WorkerSpec
from balancer.files.off_loop import OffLoop

logger = logging.getLogger(__name__)

_LIMIT_S = 10.0
MAX_ADDRESSES = 1000


def addresses_of(name: str) -> list[str]:
    """The IPv4 addresses that a name has; blocks.

    Raises:
        OSError: it has none, or nobody answers.
    """
    found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class DnsSource:
    """A `WorkerSource` that asks for the addresses of a name. While nobody answers, it yields nothing."""

    def __init__(
        self,
        name: str,
        ports: Ports = TRITON_PORTS,
        resolve: Callable[[str], Iterable[str]] = addresses_of,
        every_s: float = 5.0,
    ) -> None:
        self._name, self._ports, self._resolve, self._every_s = name, ports, resolve, every_s
        self._failed = False

    async def updates(self, stop: asyncio.Event) -> AsyncGenerator[tuple[WorkerSpec, ...], None]:
        """The list of workers, first as it is and then after every change, until `stop` is set."""
        last: tuple[WorkerSpec, ...] | None = None
        lookup: OffLoop[Iterable[str]] = OffLoop(_LIMIT_S)
        while not stop.is_set():
            workers = await self._ask(lookup)
            if workers is not None and workers != last:
                last = workers
                yield workers
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._every_s)

    async def _ask(self, lookup: OffLoop[Iterable[str]]) -> tuple[WorkerSpec, ...] | None:
        name = self._name
        try:
            addresses = await lookup.run(lambda: self._resolve(name))
        except (OSError, UnicodeError, TimeoutError) as error:
            if not self._failed:
                logger.warning("discovery.dns: no address of %s, the workers known last stay: %s", name, error)
            self._failed = True
            return None
        if self._failed:
            logger.info("discovery.dns: %s has addresses again", name)
        self._failed = False
        grpc_port, http_port = self._ports
        usable = sorted(address for address in set(addresses) if is_of_a_pod(address))
        return tuple(
            WorkerSpec(name=address, address=address, grpc_port=grpc_port, http_port=http_port)
            for address in usable[:MAX_ADDRESSES]
        )
