"""Attacks on how requests are told apart: by an id that Envoy makes, which nobody outside knows before or sets."""

from __future__ import annotations

from pathlib import Path

import pytest
from envoy.service.accesslog.v3 import als_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from support.envoy_fakes import FakeBalancer, Rig, eventually

from balancer.frontends import access_log

pytestmark = pytest.mark.integration
NAME = "x-gateway-request-id"


def ids(asked: ext_proc.ProcessingRequest) -> list[str]:
    headers = asked.request_headers.headers.headers
    return [header.raw_value.decode() for header in headers if header.key == NAME]


async def test_a_stranger_cannot_choose_the_id_that_the_balancer_goes_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    read = als_pb2.StreamAccessLogsMessage.FromString

    def noting(serialised: bytes) -> als_pb2.StreamAccessLogsMessage:
        message = read(serialised)
        logged.extend(entry.request.request_headers[NAME] for entry in message.http_logs.log_entry)
        return message

    add_to = access_log.AccessLog.add_to

    def tapped(self: access_log.AccessLog, server: object) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(als_pb2, "StreamAccessLogsMessage", type("Tapped", (), {"FromString": staticmethod(noting)}))
            add_to(self, server)  # type: ignore[arg-type]

    monkeypatch.setattr(access_log.AccessLog, "add_to", tapped)
    rig = Rig(tmp_path, balancers=[FakeBalancer()])
    async with rig.running():
        forged = [
            [],
            [(NAME, "mine")],
            [(NAME, "mine"), (NAME, "mine too")],
            [("x-request-id", "mine"), (NAME, "")],
            [("x-request-id", "mine")],
        ]
        for metadata in forged:
            await rig.infer(metadata=metadata)
        url = f"http://{rig.envoy.endpoint}/v2/models/m/infer"
        for _ in range(2):
            async with rig.http.post(url, data=b"{}", headers={"X-Gateway-Request-Id": "mine"}) as response:
                assert response.status == 200
        told = [ids(asked) for asked in rig.balancers[0].seen]
        assert [len(each) for each in told] == [1] * 7
        unique = {each[0] for each in told}
        assert len(unique) == 7
        assert all(len(one) == 36 for one in unique)

        async def all_logged() -> bool:
            return len(logged) >= 7

        await eventually(all_logged)
        assert set(logged) == unique
