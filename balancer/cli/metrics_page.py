"""`--metrics`: /metrics alone, of processes that are no balancer."""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from balancer.errors import OperatorError
from balancer.files.schema import Address
from balancer.server.admin.server import AdminServer

_CONNECTIONS = 16
_TIMEOUT_S = 5.0


async def serve_metrics(latest: Callable[[], bytes], address: Address) -> AdminServer:
    """Serve what `latest` returns, until the server is stopped.

    Raises:
        OperatorError: nobody can listen there.
    """

    async def page(request: web.BaseRequest) -> web.StreamResponse:
        if request.path != "/metrics" or request.method not in ("GET", "HEAD"):
            return web.Response(status=404, text="there is /metrics alone\n")
        return web.Response(body=latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    server = AdminServer(page, _CONNECTIONS, _TIMEOUT_S, closed=lambda _: None)
    try:
        await server.start(address, None)
    except (OSError, ValueError) as error:
        raise OperatorError(f"--metrics {address}: cannot listen there: {error}") from error
    return server
