"""One real Triton with all models, for the tests that only send requests."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import tritonclient.grpc
from support.real_triton import running

from balancer.stack.process import free_ports
from balancer.stack.tritonserver import TritonServer, TritonUnavailableError, find_triton

ROOT = Path(__file__).parents[3]
WORKER = "worker-under-test"
LARGE_MESSAGES = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]

MakeTriton = Callable[..., TritonServer]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="session", autouse=True)
def _triton_available() -> None:
    try:
        find_triton()
    except TritonUnavailableError as error:
        pytest.skip(str(error))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def triton(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TritonServer]:
    grpc_port, http_port, metrics_port = free_ports(3)
    directory = tmp_path_factory.mktemp("triton")
    server = TritonServer(
        name=WORKER,
        model_repository=(ROOT / "triton" / "models", ROOT / "triton" / "feature_models"),
        grpc_port=grpc_port,
        http_port=http_port,
        metrics_port=metrics_port,
        log_path=directory / "triton.log",
        environment={"EMULATED_GPU": "T4"},
    )
    async with running(server):
        yield server


@pytest.fixture
def grpc_client(triton: TritonServer) -> Iterator[tritonclient.grpc.InferenceServerClient]:
    with tritonclient.grpc.InferenceServerClient(triton.grpc_endpoint, channel_args=LARGE_MESSAGES) as client:
        yield client


@pytest_asyncio.fixture
async def make_triton(tmp_path: Path) -> AsyncIterator[MakeTriton]:
    """Makes servers (not started) that are ended with the test. Models: those named, linked into one repository."""
    made: list[TritonServer] = []

    def make(*models: str, **options: object) -> TritonServer:
        repository = tmp_path / f"models-{len(made)}"
        repository.mkdir()
        for model in models:
            (source,) = ROOT.glob(f"triton/*models/{model}")
            (repository / model).symlink_to(source)
        grpc_port, http_port, metrics_port = free_ports(3)
        settings: dict[str, object] = {
            "name": f"worker-{len(made)}",
            "model_repository": repository,
            "grpc_port": grpc_port,
            "http_port": http_port,
            "metrics_port": metrics_port,
            "log_path": tmp_path / f"triton-{len(made)}.log",
        }
        made.append(TritonServer(**(settings | options)))
        return made[-1]

    yield make
    for server in made:
        await server.kill()
