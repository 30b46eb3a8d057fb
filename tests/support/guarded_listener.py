"""An Envoy whose listener asks something of clients, whichever front end is behind it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from support.bootstrap import changed
from support.envoy_fakes import Rig
from support.fronts import one_of
from support.native import NativeRig

FRONTS = {"pick": Rig, "native": NativeRig}
by_front = pytest.mark.parametrize("front", one_of(*sorted(FRONTS)))


def guarded(front: str, directory: Path, **options: Any) -> Rig:
    """The rig, not started."""
    rig = FRONTS[front](directory)
    rig.options = changed(rig.options, **options)
    return rig


def overlay(folder: Path, filters: Mapping[str, Any], listener: str = "inference", **clusters: Any) -> Path:
    """A file for `envoy.overlay` that changes these filters of a listener, and clusters, by name."""
    manager = {"http_filters": [{"name": name, "typed_config": typed} for name, typed in filters.items()]}
    chain = {
        "name": "inference",
        "filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}],
    }
    content: dict[str, Any] = {"listeners": [{"name": listener, "filter_chains": [chain]}]}
    if clusters:
        content["clusters"] = [{"name": name, **cluster} for name, cluster in clusters.items()]
    file = folder / "overlay.yaml"
    file.write_text(yaml.safe_dump({"static_resources": content}))
    return file


async def grpc_status(rig: Rig, **metadata: str) -> tuple[grpc.StatusCode, str]:
    """Of an inference with these headers (`_` for `-`), and its words."""
    sent = [(name.replace("_", "-"), value) for name, value in metadata.items()]
    try:
        await rig.infer(metadata=sent)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


async def rest_status(
    rig: Rig, headers: Mapping[str, str] | None = None, path: str = "/v2/models/m/infer"
) -> tuple[int, str]:
    """Of an inference with these headers, and its body. It has no content type, as Triton's client has none."""
    url = f"http://{rig.envoy.endpoint}{path}"
    async with rig.http.post(url, data=b"{}", headers=headers, skip_auto_headers=["Content-Type"]) as response:
        return response.status, await response.text()
