"""Real certificates on every connection: client to Envoy, Envoy to the balancer, agents to the balancer."""

from __future__ import annotations

from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc.aio as grpc_aio
import trustme
from support.stack import Stack

pytestmark = pytest.mark.integration


async def test_every_connection_by_tls_and_the_picks_are_the_balancers(tmp_path: Path) -> None:
    authority = trustme.CA()
    ca, cert, key = (str(tmp_path / name) for name in ("ca.pem", "cert.pem", "key.pem"))
    authority.cert_pem.write_to_path(ca)
    identity = authority.issue_cert("balancer.test", "127.0.0.1")
    identity.private_key_pem.write_to_path(key)
    identity.cert_chain_pems[0].write_to_path(cert)
    pair = {"cert_file": cert, "key_file": key}
    stack = Stack(
        tmp_path / "stack",
        workers=1,
        settings={
            "tls": {**pair, "client_ca_file": ca},
            "envoy": {"tls": pair, "balancer_tls": {"ca_file": ca, "server_name": "balancer.test", **pair}},
        },
        agent_arguments=("--tls-ca", ca, "--tls-name", "balancer.test", "--tls-cert", cert, "--tls-key", key),
    )
    try:
        await stack.start()
        credentials = grpc.ssl_channel_credentials(Path(ca).read_bytes())
        async with grpc_aio.InferenceServerClient(stack.url, ssl=True, creds=credentials) as client:
            value = grpc_aio.InferInput("INPUT", [1, 4], "FP32")
            value.set_data_from_numpy(np.ones((1, 4), np.float32))
            for _ in range(20):
                assert (await client.infer("emulated_tft", [value])).as_numpy("CHECKSUM")[0, 0] == 4
        recent = await stack.get("/recent")
        assert recent["picked"] > 0
    finally:
        await stack.stop()
