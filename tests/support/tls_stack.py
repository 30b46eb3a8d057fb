"""The stack with certificates on every connection, whose admin pages are read by an admin's."""

import ssl
from pathlib import Path
from typing import Any

import aiohttp

from support.certificates import Authority
from support.stack import Stack

NAME = "balancer.test"
"""In the certificates of Envoy and the balancer."""
ROLES = {
    "balancer": {"dns": NAME},
    "envoy": {"dns": NAME, "uri": "spiffe://balancer/envoy"},
    "agent": {"uri": "spiffe://balancer/agent/worker-0"},
    "relay": {"dns": NAME, "uri": "spiffe://balancer/relay"},
    "admin": {"uri": "spiffe://balancer/admin"},
}


class TlsStack(Stack):
    """One worker; each part has a certificate for its role, and admin pages are read as an admin."""

    def __init__(self, folder: Path, authority: Authority, listen: dict[str, str] | None = None, **envoy: Any) -> None:
        """`listen`, `envoy`: further fields of the config's sections."""
        self.identities = {part: authority.issue(part, **names) for part, names in ROLES.items()}
        own, agent, admin = (self.identities[part] for part in ("envoy", "agent", "admin"))
        pair = {"cert_file": str(own.cert), "key_file": str(own.key)}
        towards = {"ca_file": str(authority.file), "server_name": NAME, **pair}
        listener = self.identities["balancer"].section(authority)
        self.trusted = ssl.create_default_context(cadata=authority.pem.decode())
        self.trusted.load_cert_chain(admin.cert, admin.key)
        super().__init__(
            folder,
            workers=1,
            settings={
                "tls": {"envoy": listener, "reports": listener, "admin": listener},
                "listen": listen or {},
                "envoy": {"tls": pair, "balancer_tls": towards, **envoy},
            },
            agent_arguments=(
                *("--tls-ca", str(authority.file), "--tls-name", NAME),
                *("--tls-cert", str(agent.cert), "--tls-key", str(agent.key)),
            ),
        )

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
