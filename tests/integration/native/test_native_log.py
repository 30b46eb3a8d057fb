"""Envoy's log natively: what clients put into their ids stays one field of one line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from support.native import NativeRig
from support.waiting import eventually

pytestmark = pytest.mark.integration

IDS = {
    "not UTF-8": b"\xff\xfe\xfd",
    "a zero": b"a\x00b",
    "an escaped zero": rb"a\u0000b",
    "an open end": b'"x',
    "a new line and colours": rb"\"\n\u001b[31m",
    "half a character": rb"\ud800",
    "two bytes each": b"\xc3\xa9" * 100,
    "many": b"x" * 256,
    "a format of Envoy's": b"%DYNAMIC_METADATA(balancer:x)%",
}
HEADERS: tuple[dict[str, str], ...] = ({}, {"x-request-id": "r" * 4000}, {"x-request-id": "\xff\xfe"})


async def test_ids_stay_in_their_field(tmp_path: Path) -> None:
    """Each request is answered, Envoy lives, and each line of the log is one object with the id as it came."""
    log = tmp_path / "access.log"
    rig = NativeRig(tmp_path)
    rig.options = dataclasses.replace(rig.options, access_log=str(log))
    async with rig.running():
        rig.router.state.tell_lines(1.0)
        sent = 0
        for raw in IDS.values():
            body = b'{"id":"' + raw + b'","inputs":[{"name":"x","shape":[1,4],"datatype":"UINT8","data":[1]}]}'
            for headers in HEADERS:
                url = f"http://{rig.envoy.endpoint}/v2/models/m/infer"
                async with rig.http.post(url, data=body, headers=headers) as answer:
                    assert answer.status in {200, 400}
                    assert answer.status == 200 or "is refused" in (await answer.json())["error"]
                    sent += 1
        assert await rig.picks()
        await eventually(lambda: log.exists() and log.read_bytes().count(b"\n") > sent)
        lines = [json.loads(line) for line in log.read_bytes().splitlines()]
    told = [line["triton_request_id"] for line in lines if line["status"] == 200]
    assert "x" * 256 in told
    assert IDS["a format of Envoy's"].decode() in told
    assert IDS["two bytes each"].decode() in told
