"""The ways to the workers that all in one process share, with their certificates.

A gRPC channel each, opened at its first use and closed once its worker has left; by HTTP, a connection for each
request, since an idle one delays the end of a Triton.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import NamedTuple

import aiohttp
import grpc
from yarl import URL

from balancer.balancer_tls import BalancerTls, contents, credentials, http_context
from balancer.discovery.workers import WorkerSpec
from balancer.errors import OperatorError
from balancer.files.answers import TooLongError, whole_body

OPTIONS: tuple[tuple[str, int | str], ...] = (
    # As large as Triton takes and sends them.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A restarted Triton should be found within a second; gRPC's own back-off would grow to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A worker that is gone without a word is found by TCP within the timeout, where something was sent to it; else by a
    # ping, which Triton ends the connection for where they come more often than each 300 s.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Who calls decides what is sent again, and where.
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    # Workers are in reach; a proxy of the environment is for others.
    ("grpc.enable_http_proxy", 0),
    # A worker that takes the address of another gets a connection of its own.
    ("grpc.use_local_subchannel_pool", 1),
)
_LEAVING_S = 300.0
"""What a worker that has left still executes may end within."""


class UnknownWorkerError(LookupError):
    """No worker of that name is listed."""


class Channels:
    """A channel for each worker that is listed. Belongs to one event loop."""

    def __init__(self, tls: BalancerTls | None = None) -> None:
        """`tls`: of the workers' gRPC ports, as `envoy.triton_tls` has it; None: plain text. Reads its files, so it
        blocks.

        Raises:
            OperatorError: a file of `tls` cannot be read.
        """
        self._tls = tls
        self._credentials = None if tls is None else credentials(tls)
        self._contents = () if tls is None else contents(tls)
        self._endpoints: dict[str, str] = {}
        self._open: dict[str, grpc.aio.Channel] = {}
        self._closing: dict[asyncio.Task[None], grpc.aio.Channel] = {}

    def __len__(self) -> int:
        return len(self._open)

    def update(self, workers: Iterable[WorkerSpec]) -> None:
        """Who is listed from now on. Calls to those that have left may end; a worker that moved gets a new channel."""
        endpoints = {worker.name: worker.grpc_endpoint for worker in workers}
        for name in [name for name in self._open if endpoints.get(name) != self._endpoints[name]]:
            self._let_go(self._open.pop(name))
        self._endpoints = endpoints

    def of(self, worker: str) -> grpc.aio.Channel:
        """The channel to a worker.

        Raises:
            UnknownWorkerError: it is not listed.
        """
        channel = self._open.get(worker)
        if channel is None:
            endpoint = self._endpoints.get(worker)
            if endpoint is None:
                raise UnknownWorkerError(worker)
            channel = self._open[worker] = self._new(endpoint)
        return channel

    async def renew(self) -> None:
        """Read the certificates again: where they changed, calls from now on use them, and those under way go on.

        Raises:
            OperatorError: a file cannot be read; those before stay in use.
        """
        if self._tls is None:
            return
        now = await asyncio.to_thread(contents, self._tls)
        if now == self._contents:
            return
        self._credentials = await asyncio.to_thread(credentials, self._tls)
        self._contents = now
        before, self._open = self._open, {}
        for channel in before.values():
            self._let_go(channel)

    async def close(self) -> None:
        closing, self._closing = self._closing, {}
        for task in closing:
            task.cancel()
        await asyncio.gather(*closing, return_exceptions=True)
        channels, self._open, self._endpoints = [*closing.values(), *self._open.values()], {}, {}
        await asyncio.gather(*(channel.close() for channel in channels))

    def _new(self, endpoint: str) -> grpc.aio.Channel:
        # An address is none of a name: nothing is to be looked up.
        target = f"{'ipv6' if endpoint.startswith('[') else 'ipv4'}:{endpoint}"
        if self._tls is None or self._credentials is None:
            return grpc.aio.insecure_channel(target, options=OPTIONS)
        name = ("grpc.ssl_target_name_override", self._tls.server_name)
        return grpc.aio.secure_channel(target, self._credentials, options=(*OPTIONS, name))

    def _let_go(self, channel: grpc.aio.Channel) -> None:
        task = asyncio.get_running_loop().create_task(channel.close(grace=_LEAVING_S))
        self._closing[task] = channel
        task.add_done_callback(lambda ended: self._closing.pop(ended, None))


_CONNECTED_WITHIN_S = 1.0
MOST_ANSWER_BYTES = 16 * 2**20
"""Statistics of many models and batch sizes are some megabytes."""


class Response(NamedTuple):
    status: int
    body: bytes


class RestPorts:
    """Belongs to one event loop, in which it is first used."""

    def __init__(self, tls: BalancerTls | None = None) -> None:
        """`tls`: of the workers' HTTP ports; None: plain text. Reads its files, so it blocks.

        Raises:
            OperatorError: a file cannot be used.
        """
        self._tls = tls
        self._name = None if tls is None else tls.server_name
        self._context = None if tls is None else http_context(tls)
        self._endpoints: dict[str, str] = {}
        self._session: aiohttp.ClientSession | None = None

    def update(self, workers: Iterable[WorkerSpec]) -> None:
        self._endpoints = {worker.name: worker.http_endpoint for worker in workers}

    async def renew(self) -> None:
        """Read the certificates again, for requests from now on.

        Raises:
            OperatorError: a file cannot be used; those before stay in use.
        """
        if self._tls is not None:
            self._context = await asyncio.to_thread(http_context, self._tls)

    @contextlib.asynccontextmanager
    async def open(
        self,
        worker: str,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str] | Sequence[tuple[str, str]],
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send one request, and read its answer as it comes; `path` goes out as it is.

        Raises:
            UnknownWorkerError: it is not listed.
            aiohttp.ClientError: it did not answer.
        """
        endpoint = self._endpoints.get(worker)
        if endpoint is None:
            raise UnknownWorkerError(worker)
        if self._session is None:
            connector = aiohttp.TCPConnector(force_close=True, limit=0)
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECTED_WITHIN_S)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        scheme = "http" if self._context is None else "https"
        async with self._session.request(
            method,
            URL(f"{scheme}://{endpoint}{path}", encoded=True),
            data=body,
            headers=headers,
            ssl=self._context or True,
            server_hostname=self._name,
            allow_redirects=False,
        ) as response:
            del body  # which may be megabytes, and the answer may last
            yield response

    async def ask(self, worker: str, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """As `open`, and read all of the answer; aiohttp.ClientError too where it has more than `MOST_ANSWER_BYTES`."""
        async with self.open(worker, method, path, body, headers) as response:
            return Response(response.status, await whole_answer(response))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


async def whole_answer(response: aiohttp.ClientResponse) -> bytes:
    """Raises aiohttp.ClientError where it breaks off, or has more than `MOST_ANSWER_BYTES`."""
    try:
        return await whole_body(response, MOST_ANSWER_BYTES)
    except TooLongError as error:
        raise aiohttp.ClientPayloadError(str(error)) from error


logger = logging.getLogger(__name__)

_RENEW_EVERY_S = 60.0


class Links:
    """Belongs to one event loop."""

    def __init__(
        self,
        grpc_tls: BalancerTls | None = None,
        rest_tls: BalancerTls | None = None,
        openai_tls: BalancerTls | None = None,
    ) -> None:
        """TLS of the workers' ports; None: plain text. Reads its files, so it blocks.

        Raises:
            OperatorError: a file cannot be used.
        """
        self.channels = Channels(grpc_tls)
        self.rest = RestPorts(rest_tls)
        self.openai = RestPorts(openai_tls)
        """Calls workers that speak OpenAI's API."""
        self._encrypted = any(tls is not None for tls in (grpc_tls, rest_tls, openai_tls))
        self._renewed_s = 0.0
        self._renewing: asyncio.Task[None] | None = None

    def update(self, workers: Iterable[WorkerSpec]) -> None:
        """Who is listed from now on, each to be called by the API that it has."""
        listed = tuple(workers)
        tritons = [worker for worker in listed if worker.protocol == "triton"]
        self.channels.update(worker for worker in tritons if worker.takes_grpc)
        self.rest.update(tritons)
        self.openai.update(worker for worker in listed if worker.protocol == "openai")

    def tick(self, now_s: float) -> None:
        busy = self._renewing is not None and not self._renewing.done()
        if self._encrypted and not busy and now_s - self._renewed_s >= _RENEW_EVERY_S:
            self._renewed_s = now_s
            self._renewing = asyncio.get_running_loop().create_task(self._renew())

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        await self.channels.close()
        await self.rest.close()
        await self.openai.close()

    async def _renew(self) -> None:
        try:
            await self.channels.renew()
            await self.rest.renew()
            await self.openai.renew()
        except OperatorError as error:
            logger.error("TLS to the workers: the certificates before stay in use: %s", error)
