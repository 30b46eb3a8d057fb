"""Whether Envoy's listener serves yet: it needs endpoints, and to have found the balancer healthy, after it starts."""

import asyncio

import aiohttp

from balancer.config.config import Config
from balancer.extproc.names import MODELS
from balancer.files.schema import join_address, reachable, split_address

_TIMEOUT_S = 1.0


class ListenerProbe:
    """Asks the listener for a server's readiness until that has been had once.

    Where it asks clients for certificates, of which this process has none, a connection has to do; where for tokens or
    keys, being turned away.
    """

    def __init__(self, config: Config) -> None:
        self._waits = config.envoy.ready_after_listener
        tls = config.envoy.tls
        self._scheme = "http" if tls is None else "https"
        self._needs_certificate = tls is not None and tls.client_ca_file is not None
        needs_credentials = config.envoy.jwt is not None or config.envoy.api_keys is not None
        self._good = (200, 401) if needs_credentials else (200,)
        self._host, self._port = split_address(reachable(config.envoy.listen))

    def not_ready(self) -> str:
        """Why the listener cannot be used yet; empty: it can, or nobody asked."""
        return f"Envoy does not serve at {self._host}:{self._port} yet" if self._waits else ""

    async def look(self, tritons: bool) -> None:
        """`tritons`: some of the workers are; else all speak OpenAI's API."""
        if self._waits and await self._answers("/v2/health/ready" if tritons else MODELS):
            self._waits = False

    async def _answers(self, path: str) -> bool:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                if self._needs_certificate:
                    _, writer = await asyncio.open_connection(self._host, self._port)
                    writer.close()
                    return True
                url = f"{self._scheme}://{join_address(self._host, self._port)}{path}"
                # Whether anybody answers is asked, not who: the certificate's names are those that clients use.
                async with aiohttp.ClientSession() as session, session.get(url, ssl=False) as response:
                    return response.status in self._good
        except (OSError, TimeoutError, aiohttp.ClientError):
            return False
