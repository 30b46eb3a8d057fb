"""By what a server's HTTP port lets the agent in."""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from balancer.balancer_tls import BalancerTls, http_context
from balancer.files.answers import bearer_of


@dataclass(frozen=True, slots=True)
class Access:
    """Files are read for each new connection, so what is renewed is used."""

    tls: BalancerTls | None = None
    """None: plain text."""
    key_file: Path | None = None
    """The file with the key that requests carry as `authorization: Bearer KEY`; None: the server asks for none."""

    @property
    def scheme(self) -> str:
        return "http" if self.tls is None else "https"

    @property
    def server_name(self) -> str | None:
        return None if self.tls is None else self.tls.server_name

    async def read(self) -> tuple[ssl.SSLContext | None, Mapping[str, str]]:
        """For a connection, and the headers of its requests.

        Raises:
            OperatorError: a file cannot be used; the message names it.
        """
        return await asyncio.to_thread(self._read)

    def _read(self) -> tuple[ssl.SSLContext | None, Mapping[str, str]]:
        context = None if self.tls is None else http_context(self.tls)
        return context, {} if self.key_file is None else bearer_of(self.key_file, "the server's key")


OPEN = Access()
