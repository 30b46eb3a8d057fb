"""Ids that strangers may send to a listener whose Envoy decides by itself."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from support.bootstrap import changed
from support.native import NativeRig

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


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
HEADERS_OF_IDS: tuple[dict[str, str], ...] = ({}, {"x-request-id": "r" * 4000}, {"x-request-id": "\xff\xfe"})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NativeRig]:
    rig = NativeRig(tmp_path_factory.mktemp("native"))
    rig.options = changed(rig.options, access_log=str(rig.directory / "access.log"))
    async with rig.running():
        yield rig


async def test_ids_stay_in_their_field_of_envoys_log(rig: NativeRig) -> None:
    """Each request is answered, Envoy lives, and each line of the log is one object with the id as it came."""
    log, sent = rig.directory / "access.log", 0
    rig.router.state.log_lines(1.0)
    for raw in IDS.values():
        body = b'{"id":"' + raw + b'","inputs":[{"name":"x","shape":[1,4],"datatype":"UINT8","data":[1]}]}'
        for headers in HEADERS_OF_IDS:
            url = f"http://{rig.envoy.endpoint}/v2/models/m/infer"
            async with rig.http.post(url, data=body, headers=headers) as answer:
                assert answer.status in {200, 400}
                assert answer.status == 200 or "is refused" in (await answer.json())["error"]
                sent += 1
    assert await rig.picks()
    lines = await rig.logged(log, sent + 1)
    ids = [line["triton_request_id"] for line in lines if line["status"] == 200]
    assert "x" * 256 in ids
    assert IDS["a format of Envoy's"].decode() in ids
    assert IDS["two bytes each"].decode() in ids
