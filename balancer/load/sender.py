"""The unmodified tritonclient as this generator uses it: inputs made once, then one call a request."""

import asyncio
import dataclasses
import itertools
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import aiohttp
import numpy as np
import tritonclient.grpc as grpc_api
import tritonclient.grpc.aio as grpc_client
import tritonclient.http as http_api
import tritonclient.http.aio as http_client
from tritonclient.utils import InferenceServerException

from balancer.errors import OperatorError
from balancer.load import inputs
from balancer.load.result import OK

WORKER_OUTPUT = "WORKER"
"""A model with this output (strings) tells who served; the models of this project that emulate GPUs do."""

# Defaults of the balancer's config (section `requests`).
_ROWS_HEADER = "x-batch-rows"
_DEADLINE_HEADER = "x-deadline-ms"
_MAX_MESSAGE_BYTES = 2**31 - 1


class LoadError(OperatorError):
    """The run cannot start; the message names the model or address, what is wrong, and the remedy."""


@dataclasses.dataclass(frozen=True, slots=True)
class CallResult:
    code: str
    """`OK`, a gRPC status name, `HTTP 503` and the like, `TIMEOUT` or `CONNECTION`."""
    worker: str = ""
    details: str = ""


class Sender(ABC):
    """One way to send requests: prepared once, which makes the tensors of every (model, rows), then called for each."""

    def __init__(self, clients: Sequence[Any], **of_metadata: bool) -> None:
        self._clients, self._of_metadata = clients, of_metadata
        self._inputs: dict[tuple[str, int], list[Any]] = {}
        self._tells_worker: set[str] = set()
        self._ids = map(f"load-{uuid.uuid4().hex[:8]}-{{}}".format, itertools.count())

    async def prepare(self, kinds: Iterable[tuple[str, int]], seed: int) -> None:
        """Ask for metadata and make the inputs of every (model, rows) that it has none of yet.

        Raises:
            LoadError: where a model or the listener is not there, or does not take so many rows.
        """
        client = self._clients[0]
        new = sorted({*kinds} - self._inputs.keys())
        for model, group in itertools.groupby(new, key=lambda kind: kind[0]):
            try:
                metadata = await client.get_model_metadata(model, **self._of_metadata)
                config = await client.get_model_config(model, **self._of_metadata)
            except (InferenceServerException, aiohttp.ClientError, OSError, TimeoutError) as error:
                raise LoadError(
                    f"model {model}: its metadata cannot be had: {error}. Check the model's name and --url; where the "
                    "servers have just been started, wait until they are ready (/ready of the admin pages)"
                ) from error
            config = config.get("config", config)
            declared = [
                inputs.InputShape(one["name"], one["datatype"], tuple(int(size) for size in one.get("shape", ())))
                for one in metadata["inputs"]
            ]
            if any(one["name"] == WORKER_OUTPUT for one in metadata["outputs"]):
                self._tells_worker.add(model)
            for _, rows in group:
                generator = np.random.default_rng(seed)
                try:
                    arrays = inputs.tensors(declared, rows, int(config.get("max_batch_size", 0)), generator)
                except ValueError as error:
                    raise LoadError(f"model {model}: {error}") from error
                self._inputs[model, rows] = [
                    self._input(one.name, array, one.datatype) for one, array in zip(declared, arrays, strict=True)
                ]

    @abstractmethod
    def _input(self, name: str, array: np.ndarray[Any, Any], datatype: str) -> Any: ...

    @abstractmethod
    async def send(self, model: str, rows: int, timeout_s: float, headers: Mapping[str, str]) -> CallResult:
        """Send one prepared request with an id of its own, and give up on it after `timeout_s`. Does not raise for
        what the network or a server does."""

    async def close(self) -> None:
        await asyncio.gather(*(client.close() for client in self._clients))


class GrpcSender(Sender):
    """Over gRPC (asyncio), spread over several connections, since a proxy serves each connection on one thread."""

    def __init__(self, url: str, connections: int, channel_arguments: Sequence[tuple[str, int]]) -> None:
        arguments = [
            ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
            ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
            # Without it, channels to one address would share one connection.
            ("grpc.use_local_subchannel_pool", 1),
            *channel_arguments,
        ]
        clients = [grpc_client.InferenceServerClient(url, channel_args=arguments) for _ in range(connections)]
        super().__init__(clients, as_json=True)
        self._turns = itertools.cycle(self._clients)
        self._names: dict[bytes, str] = {}

    def _input(self, name: str, array: np.ndarray[Any, Any], datatype: str) -> Any:
        made = grpc_api.InferInput(name, list(array.shape), datatype)
        made.set_data_from_numpy(array)
        return made

    async def send(self, model: str, rows: int, timeout_s: float, headers: Mapping[str, str]) -> CallResult:
        """As `Sender.send`; the server learns the timeout as `grpc-timeout`."""
        try:
            result = await next(self._turns).infer(
                model,
                self._inputs[model, rows],
                request_id=next(self._ids),
                client_timeout=timeout_s,
                headers=dict(headers) or None,
            )
        except InferenceServerException as error:
            return CallResult(str(error.status()).removeprefix("StatusCode."), details=str(error.message()))
        return CallResult(OK, self._worker(result) if model in self._tells_worker else "")

    def _worker(self, result: Any) -> str:
        response = result.get_response()
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=False):
            if output.name == WORKER_OUTPUT:
                # The same few byte strings come back all the time; decoding them once is enough.
                name = self._names.get(raw)
                if name is None:
                    name = self._names[raw] = inputs.first_text(raw)
                return name
        return ""


class HttpSender(Sender):
    """Over HTTP/REST with binary tensors, one connection for each request in flight."""

    def __init__(self, url: str, max_in_flight: int) -> None:
        # The client's own time limit is per session: left off, because each request has its own here.
        client = http_client.InferenceServerClient(url, conn_limit=max_in_flight, conn_timeout=None)
        super().__init__([client])

    def _input(self, name: str, array: np.ndarray[Any, Any], datatype: str) -> Any:
        made = http_api.InferInput(name, list(array.shape), datatype)
        made.set_data_from_numpy(array, binary_data=True)
        return made

    async def send(self, model: str, rows: int, timeout_s: float, headers: Mapping[str, str]) -> CallResult:
        """As `Sender.send`; rows and timeout go along as headers, since a balancer that is asked sees nothing else."""
        headers = {_ROWS_HEADER: str(rows), _DEADLINE_HEADER: f"{timeout_s * 1e3:.0f}", **headers}
        try:
            async with asyncio.timeout(timeout_s):
                result = await self._clients[0].infer(
                    model, self._inputs[model, rows], request_id=next(self._ids), headers=headers
                )
        except TimeoutError:
            return CallResult("TIMEOUT")
        except InferenceServerException as error:
            return CallResult(f"HTTP {error.status()}", details=str(error.message()))
        except (aiohttp.ClientError, OSError) as error:
            return CallResult("CONNECTION", details=repr(error))
        if model not in self._tells_worker:
            return CallResult(OK)
        names = result.as_numpy(WORKER_OUTPUT)
        return CallResult(OK, names.flat[0].decode(errors="replace") if names is not None and names.size else "")


def make_sender(
    url: str,
    protocol: Literal["grpc", "http"],
    connections: int,
    max_in_flight: int,
    channel_arguments: Sequence[tuple[str, int]] = (),
) -> Sender:
    """A sender to `host:port`, with further arguments of its gRPC channels; to be called in a running event loop."""
    if protocol == "grpc":
        return GrpcSender(url, connections, channel_arguments)
    return HttpSender(url, max_in_flight)
