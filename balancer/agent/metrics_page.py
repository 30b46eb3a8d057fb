"""Fetches Triton's `/metrics` page over one HTTP connection that is kept open.

By hand rather than with aiohttp: at 100 pages a second beside every Triton the difference counts (23 against 102
microseconds of CPU a page, measured), and one GET of one known server needs little of HTTP.
"""

import asyncio
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from balancer.agent.access import OPEN, Access
from balancer.bounds import MAX_COUNT
from balancer.errors import OperatorError

_MAX_PAGE_BYTES = 64 * 1024 * 1024
_NOT_THERE = (
    "is Triton up at that address, with --allow-metrics=true? The agent's --triton-metrics, --triton-grpc and "
    "--triton-http name another"
)
_REQUEST = b"GET /metrics HTTP/1.1\r\n"
_OTHER_PAGE = "is that Triton's metrics port? The agent's --triton-metrics names another"


class MetricsUnavailableError(Exception):
    """The page cannot be had; the message says why."""

    def __init__(self, message: str, *, gone: bool) -> None:
        super().__init__(message)
        self.gone = gone
        """Whether nothing listens there any more, so that whatever listens next is another process."""


class MetricsPage:
    """The page at `/metrics` of one server; one fetch at a time."""

    def __init__(self, address: str, timeout_s: float, not_there: str = _NOT_THERE, access: Access = OPEN) -> None:
        """`address` is `host:port`; a fetch that takes longer than `timeout_s` fails. `not_there`: what to do where it
        cannot be reached."""
        self.address, self._access = address, access
        self._not_there = not_there
        host, _, self._port = address.rpartition(":")
        self._host = host.strip("[]")
        self._request = b""
        """The request for the page, written anew with each connection."""
        self._timeout_s = timeout_s
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def fetch(self) -> bytes:
        """The page's text.

        Raises:
            MetricsUnavailableError: if it cannot be had.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._connection is not None:
                    try:
                        return await self._get(*self._connection)
                    except (OSError, EOFError):
                        # A kept connection may have been closed as idle: only a new one tells whether Triton is gone.
                        self.close()
                return await self._get(*await self._connect())
        except TimeoutError:
            self.close()
            raise self._unavailable(
                f"no answer within {self._timeout_s} s", gone=False, remedy=self._not_there
            ) from None
        except ConnectionRefusedError:
            raise self._unavailable("connection refused", gone=True, remedy=self._not_there) from None
        except (OSError, EOFError, asyncio.LimitOverrunError, ValueError, OperatorError) as error:
            self.close()
            raise self._unavailable(str(error) or type(error).__name__, gone=False, remedy=self._not_there) from error
        except BaseException:
            # Cancelled, or not understood: the rest of an answer may still come, so the connection is of no more use.
            self.close()
            raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context, headers = await self._access.read()
        lines = {"Host": self.address, "Accept": "text/plain", **headers}
        self._request = _REQUEST + "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode() + b"\r\n"
        self._connection = await asyncio.open_connection(
            self._host, int(self._port), ssl=context, server_hostname=self._access.server_name
        )
        return self._connection

    async def _get(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(self._request)
        head = await reader.readuntil(b"\r\n\r\n")
        status, *lines = head.split(b"\r\n")
        if b" 200 " not in status + b" ":
            raise self._unavailable(f"answered {status.decode(errors='replace')!r}", gone=False)
        for line in lines:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length" and (size := int(value)) <= _MAX_PAGE_BYTES:
                return await reader.readexactly(size)
        raise self._unavailable("the answer's Content-Length is missing or too large", gone=False)

    def _unavailable(self, why: str, *, gone: bool, remedy: str = _OTHER_PAGE) -> MetricsUnavailableError:
        return MetricsUnavailableError(f"{self._access.scheme}://{self.address}/metrics: {why}; {remedy}", gone=gone)


ModelKey = tuple[str, str]
"""(model, version)."""

_FIELDS = {
    b"nv_inference_pending_request_count": "pending",
    b"nv_inference_request_success": "succeeded",
    b"nv_inference_request_failure": "failed",
    b"nv_inference_compute_input_duration_us": "compute_us",
    b"nv_inference_compute_infer_duration_us": "compute_us",
    b"nv_inference_compute_output_duration_us": "compute_us",
}
BLOCKS = b"nv_trt_llm_kv_cache_block_metrics"
"""The metric by which TensorRT-LLM's backend reports its engine's KV cache; the label `kv_cache_block_type` says which
number it is."""
_BLOCK_FIELDS = {"max": "blocks", "used": "used_blocks", "tokens_per": "tokens_a_block"}
_LABEL = re.compile(rb'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_MAX_REMEMBERED_LINES = 100_000
"""Far above any page; bounds memory where model names come and go for months."""


class MetricsError(ValueError):
    """The page is not what Triton serves; the message says what is wrong with it."""


@dataclass(slots=True)
class ModelMetrics:
    """One version of one model; counters are cumulative, and summed over GPUs and failure reasons."""

    pending: float = 0.0
    succeeded: float = 0.0
    failed: float = 0.0
    compute_us: float = 0.0
    """Microseconds of input, inference and output, of every request that succeeded: a batch of 8 counts 8 times."""
    blocks: float = 0.0
    """Blocks of the engine's KV cache; 0: the model has no such engine."""
    used_blocks: float = 0.0
    tokens_a_block: float = 0.0


class MetricsParser:
    def __init__(self) -> None:
        self._meanings: dict[bytes, tuple[ModelKey, str] | None] = {}

    def parse(self, page: bytes) -> dict[ModelKey, ModelMetrics]:
        """The metrics of each model and version that the page names.

        Raises:
            MetricsError: if a line that matters cannot be read.
        """
        meanings = self._meanings
        if len(meanings) > _MAX_REMEMBERED_LINES:
            meanings.clear()
        models: dict[ModelKey, ModelMetrics] = {}
        for line in page.split(b"\n"):
            series, _, number = line.rpartition(b" ")
            try:
                meaning = meanings[series]
            except KeyError:
                meaning = meanings[series] = _meaning(series)
            if meaning is None:
                continue
            key, field = meaning
            try:
                value = float(number)
                if not math.isfinite(value):
                    raise ValueError
            except ValueError:
                raise MetricsError(f"{series.decode(errors='replace')}: {number!r} is not a number") from None
            model = models.get(key)
            if model is None:
                model = models[key] = ModelMetrics()
            setattr(model, field, getattr(model, field) + value)
        return models


def memory_tokens(models: Mapping[ModelKey, ModelMetrics]) -> tuple[int, int]:
    """How many tokens the memory of the page's language model has, and how many of them requests hold. Zeros: there is
    none, or there are several. It holds for all models: what clients ask may be another one, which calls it."""
    engines = [model for model in models.values() if model.blocks > 0]
    if len(engines) != 1:
        return 0, 0
    tokens = (max(0.0, blocks * engines[0].tokens_a_block) for blocks in (engines[0].blocks, engines[0].used_blocks))
    of_all, held = (int(min(found, MAX_COUNT)) for found in tokens)
    return of_all, min(held, of_all)


def _meaning(series: bytes) -> tuple[ModelKey, str] | None:
    """Which field of which model the series is; None: none that matters."""
    name, brace, labels = series.partition(b"{")
    field = _FIELDS.get(name)
    if (field is None and name != BLOCKS) or not brace:
        return None
    values = {match[1]: _unescape(match[2]) for match in _LABEL.finditer(labels)}
    if field is None and (field := _BLOCK_FIELDS.get(values.get(b"kv_cache_block_type", ""))) is None:
        return None
    try:
        return (values[b"model"], values[b"version"]), field
    except KeyError as missing:
        label = missing.args[0].decode()
        raise MetricsError(f"{series.decode(errors='replace')}: has no label {label!r}") from None


def _unescape(value: bytes) -> str:
    """A label's value as the text format escapes it: backslash, quote and newline."""
    text = value.decode(errors="replace")
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], text) if "\\" in text else text
