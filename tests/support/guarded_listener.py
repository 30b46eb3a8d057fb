"""An Envoy whose listener asks something of clients, by either front end."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from balancer.gateway.bootstrap_access import Access
from support.envoy_fakes import Rig, a_request
from support.native import NativeRig

FRONTS = {"pick": Rig, "native": NativeRig}
both_fronts = pytest.mark.parametrize("front", FRONTS)


def guarded(front: str, directory: Path, access: Access, **options: Any) -> Rig:
    """The rig, not started."""
    rig = FRONTS[front](directory)
    rig.options = dataclasses.replace(rig.options, access=access, **options)
    return rig


async def grpc_status(rig: Rig, **metadata: str) -> tuple[grpc.StatusCode, str]:
    """Of an inference with these headers (`_` for `-`), and its words."""
    sent = [(name.replace("_", "-"), value) for name, value in metadata.items()]
    try:
        await rig.stub.ModelInfer(a_request(), timeout=10, metadata=sent)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


async def rest_status(
    rig: Rig, headers: Mapping[str, str] | None = None, path: str = "/v2/models/m/infer"
) -> tuple[int, str]:
    """Of an inference with these headers, and its body."""
    async with rig.http.post(f"http://{rig.envoy.endpoint}{path}", data=b"{}", headers=headers) as response:
        return response.status, await response.text()
