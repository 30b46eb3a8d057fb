"""The generator against a real Triton, over both protocols."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest

from balancer.load.arrivals import uniform
from balancer.load.result import by_model, summarise
from balancer.load.runner import DriveOptions, drive
from balancer.load.sender import LoadError
from balancer.load.workload import ModelMix, RowSizes, mixed, streams
from balancer.stack.stack import REPOSITORY, new_triton
from balancer.stack.tritonserver import TritonServer, TritonUnavailableError

MODELS = REPOSITORY / "triton" / "feature_models"

pytestmark = pytest.mark.integration


@pytest.fixture
async def triton(tmp_path: Path) -> AsyncIterator[TritonServer]:
    repository = tmp_path / "models"
    repository.mkdir()
    for name in ("identity", "string_upper", "several_outputs"):
        (repository / name).symlink_to(MODELS / name)
    server = new_triton("the-real-one", repository, tmp_path)
    try:
        await server.start()
        await server.wait_ready()
        yield server
    except TritonUnavailableError as error:
        pytest.skip(f"no Triton here: {error}")
    finally:
        await server.kill()


async def test_any_model_is_driven_over_both_protocols(triton: TritonServer) -> None:
    endpoints: dict[Literal["grpc", "http"], str] = {"grpc": triton.grpc_endpoint, "http": triton.http_endpoint}
    _, models, rows = streams(1, 3)
    mix = [ModelMix("identity"), ModelMix("string_upper"), ModelMix("several_outputs")]
    workload = mixed(uniform(200, 0.5), mix, RowSizes.parse("1-8"), models, rows)
    for protocol, endpoint in endpoints.items():
        result = await drive(endpoint, workload, DriveOptions(protocol=protocol))
        assert summarise(result).errors == {}, protocol
        assert summarise(result).ok == 100
        # Only `identity` says who served.
        assert result.workers == ("the-real-one",)
        assert sum(summarise(result).by_worker.values()) == len(by_model(result)["identity"])


async def test_refusals_of_a_real_triton_are_told(triton: TritonServer) -> None:
    _, models, rows = streams(1, 3)
    workload = mixed(uniform(100, 0.1), [ModelMix("identity")], RowSizes(), models, rows)
    result = await drive(triton.grpc_endpoint, workload)
    assert summarise(result).ok == 10
    await triton.kill()
    with pytest.raises(LoadError, match="model identity: its metadata cannot be had"):
        await drive(triton.http_endpoint, workload, DriveOptions(protocol="http"))
