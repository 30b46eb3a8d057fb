"""The stack with certificates on every connection, whose admin pages are read by an admin's."""

from __future__ import annotations

import ssl

import aiohttp

from support.stack import Stack

NAME = "balancer.test"
"""In the certificates of Envoy and the balancer."""


class TlsStack(Stack):
    """Reads the admin pages as an admin."""

    trusted: ssl.SSLContext

    async def get(self, page: str, process: int = 0) -> object:
        """As of Stack."""
        url = f"https://{self.config.listen.admin_address(process)}{page}"
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(url, ssl=self.trusted, server_hostname=NAME) as response,
            ):
                return await response.json()
        except aiohttp.ClientError:
            return None
