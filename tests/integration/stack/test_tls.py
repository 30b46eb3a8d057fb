"""Real certificates on every connection, and a role for each peer of the balancer: Envoy, the agent, an admin."""

from pathlib import Path

import aiohttp
import grpc
import numpy as np
import pytest
import tritonclient.grpc.aio as grpc_aio
from support import fronts
from support.certificates import Authority
from support.inputs import input_of
from support.running import running
from support.tls_stack import NAME, TlsStack
from support.waiting import eventually
from tritonclient.utils import InferenceServerException

from balancer.stack.process import free_port_range

pytestmark = pytest.mark.integration


@fronts.frontend("proxy", "pick")
async def test_every_connection_by_tls_and_the_picks_are_the_balancers(tmp_path: Path, frontend: str) -> None:
    authority = Authority(tmp_path)
    fleet = {"fleet": f"127.0.0.1:{free_port_range(2)}"}
    stack = TlsStack(tmp_path / "stack", authority, listen=fleet, frontend=frontend)
    async with running(stack):
        credentials = grpc.ssl_channel_credentials(authority.pem)
        options = [("grpc.ssl_target_name_override", NAME)]
        client = grpc_aio.InferenceServerClient(stack.url, ssl=True, creds=credentials, channel_args=options)
        async with client:
            value = input_of(grpc_aio, "INPUT", np.ones((1, 4), np.float32))
            await eventually(
                client.get_server_metadata, "the balancer answers by gRPC", until=lambda found: found.name == "triton"
            )

            async def endpoints_have_arrived() -> bool:
                try:
                    await client.infer("emulated_tft", [value])
                except InferenceServerException as error:
                    if "no healthy upstream" not in str(error):
                        raise
                    return False
                return True

            await eventually(endpoints_have_arrived, "Envoy, which may have started first, has its endpoints")
            for _ in range(20):
                assert (await client.infer("emulated_tft", [value])).as_numpy("CHECKSUM")[0, 0] == 4

        async def the_fleet_answers_by_rest() -> bool:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"https://{stack.url}/v2", ssl=stack.trusted, server_hostname=NAME) as response,
            ):
                return bool((await response.json())["name"] == "triton")

        await eventually(the_fleet_answers_by_rest, "the balancer answers by HTTP")
        body = {"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, 4], "data": [1, 1, 1, 1]}]}
        async with aiohttp.ClientSession() as session:
            url = f"https://{stack.url}/v2/models/emulated_tft/infer"
            async with session.post(url, json=body, ssl=stack.trusted, server_hostname=NAME) as response:
                checksum = (await response.json(content_type=None))["outputs"][0]
        assert (checksum["name"], checksum["data"]) == ("CHECKSUM", [4.0])
        recent = await stack.get("/recent")
        assert isinstance(recent, dict)
        assert recent["picked"] > 0
