"""A real API server for all tests here."""

import importlib.util
from collections.abc import AsyncIterator, Iterator

import pytest
from support import chart
from support.kubernetes_api import KubernetesApi, Namespace, why_absent


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesApi]:
    if importlib.util.find_spec("kubernetes") is None:
        pytest.skip("the package `kubernetes` is not installed: pip install 'balancer[kubernetes]'")
    if why := why_absent() or chart.why_absent():
        pytest.skip(why)
    api = KubernetesApi(tmp_path_factory.mktemp("kubernetes"))
    try:
        api.start()
        yield api
    finally:
        api.stop()


@pytest.fixture
async def kubernetes(server: KubernetesApi) -> AsyncIterator[KubernetesApi]:
    async with server.session():
        yield server


@pytest.fixture
async def namespace(kubernetes: KubernetesApi, request: pytest.FixtureRequest) -> Namespace:
    """The test's own."""
    name = request.node.name.replace("_", "-").removeprefix("test-")[:60].rstrip("-")
    return await kubernetes.namespace(name)
