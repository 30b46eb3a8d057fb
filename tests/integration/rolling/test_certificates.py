"""All certificates are renewed while clients go on: of the listener, of Envoy, of the balancer and of an agent."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc.aio as grpc_aio
from cryptography import x509
from support import fronts
from support.certificates import Authority, Identity, shown_serial
from support.tls_stack import NAME, TlsStack
from support.waiting import eventually
from tritonclient.utils import InferenceServerException

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

CLIENTS = 3
OF_ONE_CONNECTION = 20
"""Requests; then a client comes with a new one."""
NAMES = {
    "balancer": {"dns": NAME},
    "envoy": {"dns": NAME, "uri": "spiffe://balancer/envoy"},
    "agent": {"uri": "spiffe://balancer/agent/worker-0"},
    "admin": {"uri": "spiffe://balancer/admin"},
}


@dataclass
class Served:
    """What became of the requests of clients."""

    good: int = 0
    failed: list[str] = field(default_factory=list)


@asynccontextmanager
async def clients(stack: TlsStack, authority: Authority) -> AsyncIterator[Served]:
    """Triton's own, each with a new connection now and then."""
    served, stop = Served(), asyncio.Event()
    credentials = grpc.ssl_channel_credentials(authority.pem)
    options = [("grpc.ssl_target_name_override", NAME), ("grpc.use_local_subchannel_pool", 1)]
    value = grpc_aio.InferInput("INPUT", [1, 4], "FP32")
    value.set_data_from_numpy(np.ones((1, 4), np.float32))

    async def go_on() -> None:
        while not stop.is_set():
            client = grpc_aio.InferenceServerClient(stack.url, ssl=True, creds=credentials, channel_args=options)
            async with client:
                for _ in range(OF_ONE_CONNECTION):
                    try:
                        await client.infer("emulated_tft", [value])
                        served.good += 1
                    except InferenceServerException as error:
                        served.failed.append(str(error))

    going = [asyncio.create_task(go_on()) for _ in range(CLIENTS)]
    try:
        yield served
    finally:
        stop.set()
        await asyncio.gather(*going)


def renew(authority: Authority, part: str, identity: Identity) -> int:
    """Put a new certificate in the place of one, by renaming; its serial number."""
    new = authority.issue(f"new-{part}", **NAMES[part])
    serial = x509.load_pem_x509_certificate(new.cert.read_bytes()).serial_number
    new.key.rename(identity.key)
    new.cert.rename(identity.cert)
    return serial


@fronts.frontend("native", "pick")
async def test_renewed_certificates_fail_no_request(tmp_path: Path, frontend: str) -> None:
    authority = Authority(tmp_path / "certificates")
    issued = {part: authority.issue(part, **names) for part, names in NAMES.items()}
    pair = {"cert_file": str(issued["envoy"].cert), "key_file": str(issued["envoy"].key)}
    listener = issued["balancer"].section(authority)
    stack = TlsStack(
        tmp_path / "stack",
        workers=1,
        settings={
            "tls": {"envoy": listener, "reports": listener, "admin": listener},
            "envoy": {
                "tls": pair,
                "balancer_tls": {"ca_file": str(authority.file), "server_name": NAME, **pair},
                "frontend": frontend,
                "shared_folder": str(tmp_path / "shared"),
            },
        },
        agent_arguments=(
            *("--tls-ca", str(authority.file), "--tls-name", NAME),
            *("--tls-cert", str(issued["agent"].cert), "--tls-key", str(issued["agent"].key)),
        ),
    )
    stack.trusted = ssl.create_default_context(cadata=authority.pem.decode())
    stack.trusted.load_cert_chain(issued["admin"].cert, issued["admin"].key)
    try:
        await stack.start()
        async with clients(stack, authority) as served:
            for _ in range(2):
                serials = {part: renew(authority, part, identity) for part, identity in issued.items()}
                for address, part in (
                    (stack.url, "envoy"),
                    (stack.config.listen.envoy, "balancer"),
                    (stack.config.listen.reports_address(0), "balancer"),
                    (stack.config.listen.admin_address(0), "balancer"),
                ):

                    async def is_shown(address: str = address, serial: int = serials[part]) -> bool:
                        with suppress(OSError):
                            return await asyncio.to_thread(shown_serial, address, stack.trusted, NAME) == serial
                        return False

                    await eventually(is_shown, f"{address} shows the new certificate")
                # An agent that comes anew shows the new one, and is heard.
                await stack.agents[0].stop()
                await stack.start_agent(0)
                await stack.all_ready()
                so_far = served.good
                await eventually(lambda so_far=so_far: served.good > so_far + 100, "requests are served")
        assert not served.failed, served.failed[:5]
    finally:
        await stack.stop()
