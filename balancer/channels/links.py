"""The ways to the workers that all in one process share: gRPC channels and HTTP ports, with their certificates."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from balancer.balancer_tls import BalancerTls
from balancer.channels.channels import Channels
from balancer.channels.rest import RestPorts
from balancer.discovery.workers import WorkerSpec
from balancer.errors import OperatorError

logger = logging.getLogger(__name__)

_RENEW_EVERY_S = 60.0


class Links:
    """Belongs to one event loop."""

    def __init__(self, grpc_tls: BalancerTls | None = None, rest_tls: BalancerTls | None = None) -> None:
        """TLS of the workers' ports; None: plain text. Reads its files, so it blocks.

        Raises:
            OperatorError: a file cannot be used.
        """
        self.channels = Channels(grpc_tls)
        self.rest = RestPorts(rest_tls)
        self._encrypted = grpc_tls is not None or rest_tls is not None
        self._renewed_s = 0.0
        self._renewing: asyncio.Task[None] | None = None

    def update(self, workers: Iterable[WorkerSpec]) -> None:
        listed = tuple(workers)
        self.channels.update(listed)
        self.rest.update(listed)

    def tick(self, now_s: float) -> None:
        """Look after the certificates at times."""
        busy = self._renewing is not None and not self._renewing.done()
        if self._encrypted and not busy and now_s - self._renewed_s >= _RENEW_EVERY_S:
            self._renewed_s = now_s
            self._renewing = asyncio.get_running_loop().create_task(self._renew())

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        await self.channels.close()
        await self.rest.close()

    async def _renew(self) -> None:
        try:
            await self.channels.renew()
            await self.rest.renew()
        except OperatorError as error:
            logger.error("envoy.triton_tls: the certificates before stay in use: %s", error)
