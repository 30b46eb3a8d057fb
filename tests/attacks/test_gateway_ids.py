"""Attacks on how requests are told apart: by an id that Envoy makes, which nobody outside knows before or sets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from support.envoy_fakes import Rig

from balancer.extproc.names import GATEWAY_REQUEST_ID_HEADER

pytestmark = pytest.mark.integration


def ids(request: ext_proc.ProcessingRequest) -> list[str]:
    headers = request.request_headers.headers.headers
    return [header.raw_value.decode() for header in headers if header.key == GATEWAY_REQUEST_ID_HEADER]


async def test_a_stranger_cannot_choose_the_id_that_the_balancer_goes_by(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    async with rig.running():
        forged = [
            [],
            [(GATEWAY_REQUEST_ID_HEADER, "mine")],
            [(GATEWAY_REQUEST_ID_HEADER, "mine"), (GATEWAY_REQUEST_ID_HEADER, "mine too")],
            [("x-request-id", "mine"), (GATEWAY_REQUEST_ID_HEADER, "")],
            [("x-request-id", "mine")],
        ]
        for metadata in forged:
            await rig.infer(metadata=metadata)
        url = f"http://{rig.envoy.endpoint}/v2/models/m/infer"
        for _ in range(2):
            async with rig.http.post(url, data=b"{}", headers={"X-Gateway-Request-Id": "mine"}) as response:
                assert response.status == 200
        (balancer,) = rig.balancers
        sent = [ids(request) for request in balancer.seen]
        assert [len(each) for each in sent] == [1] * 7
        unique = {each[0] for each in sent}
        assert len(unique) == 7
        # UUIDs; and how each request ended is told under the same.
        assert {len(one) for one in unique} == {36}
        assert {(await asyncio.wait_for(balancer.outcomes.get(), 10)).gateway_id for _ in sent} == unique
