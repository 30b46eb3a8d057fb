"""All certificates are renewed while clients go on: of the listener, of Envoy, of the balancer and of an agent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc.aio as grpc_aio
from support import fronts
from support.certificates import Authority, Identity, shown_serial
from support.inputs import input_of
from support.running import running
from support.tls_stack import NAME, ROLES, TlsStack
from support.waiting import eventually
from tritonclient.utils import InferenceServerException

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

CLIENTS = 3
OF_ONE_CONNECTION = 20
"""Requests; then a client comes with a new one."""


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
    value = input_of(grpc_aio, "INPUT", np.ones((1, 4), np.float32))

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
    new = authority.issue(f"new-{part}", **ROLES[part])
    serial = new.serial
    new.key.rename(identity.key)
    new.cert.rename(identity.cert)
    return serial


@fronts.frontend("native", "pick")
async def test_renewed_certificates_fail_no_request(tmp_path: Path, frontend: str) -> None:
    authority = Authority(tmp_path / "certificates")
    stack = TlsStack(tmp_path / "stack", authority, frontend=frontend, shared_folder=str(tmp_path / "shared"))
    async with running(stack):
        async with clients(stack, authority) as served:
            for _ in range(2):
                serials = {part: renew(authority, part, identity) for part, identity in stack.identities.items()}
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
