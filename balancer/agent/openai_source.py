"""What one server of OpenAI's API says of itself: its models, and of its metrics those that servers name differently.

A server may offer a model and its adapters; its gauges count them together, which is taken for the first one's.
"""

import asyncio
import json
import logging
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp

from balancer.agent.access import OPEN, Access
from balancer.agent.metrics_page import BLOCKS, MetricsPage, MetricsParser, MetricsUnavailableError, memory_tokens
from balancer.agent.server_state import ProblemLog, ServerState, next_incarnation
from balancer.bounds import MAX_COUNT, MAX_MODELS, MAX_PENDING
from balancer.errors import OperatorError
from balancer.files.answers import whole_body
from balancer.scheduler.events import ModelReport

logger = logging.getLogger(__name__)

METRICS: Mapping[bytes, str] = {
    b"vllm:num_requests_running": "running",
    b"vllm:num_requests_waiting": "waiting",
    b"vllm:request_success_total": "succeeded",
    b"vllm:prompt_tokens_total": "computed",
    b"vllm:kv_cache_usage_perc": "held_share",
    b"vllm:gpu_cache_usage_perc": "held_share",
    b"sglang:num_running_reqs": "running",
    b"sglang:num_queue_reqs": "waiting",
    b"sglang:num_requests_total": "succeeded",
    b"sglang:prompt_tokens_total": "computed",
    b"sglang:token_usage": "held_share",
    b"sglang:max_total_num_tokens": "memory_tokens",
    b"llamacpp:requests_processing": "running",
    b"llamacpp:requests_deferred": "waiting",
    b"llamacpp:prompt_tokens_total": "computed",
    b"llamacpp:kv_cache_usage_ratio": "held_share",
    b"nv_inference_pending_request_count": "waiting",
    b"nv_inference_request_success": "succeeded",
}
"""Their names, the last ones those of Triton's OpenAI front end, and what they are here: requests that run and wait,
that ended well, tokens of prompts that were computed, the share of the memory's tokens that requests hold, and how many
there are."""
_CACHE_CONFIG = b"vllm:cache_config_info"
_BLOCKS = re.compile(rb'(?:^|,)(block_size|num_gpu_blocks)="(\d{1,12})"')
"""Other labels end so too, such as `mamba_block_size`."""
_VERSION = "1"
"""Such servers have none."""
_PERIOD_S, _TIMEOUT_S = 0.5, 5.0
_PAGE_PERIOD_S, _PAGE_TIMEOUT_S = 0.1, 30.0
_MOST_BYTES = 2**22
"""The agent reads no longer answers in JSON."""
_NOT_THERE = (
    "is the server up at that address, with its metrics on (llama-server: --metrics)? "
    "The agent's --openai names another"
)


class OpenAISource:
    """Reads one server, as `TritonSource` does; `watch` must run beside it.

    It is ready while it lists its models. Its metrics are as they were last read: a server may tell them only between
    two steps of its model (`llama-server`), and rendering them may take its own time (vLLM), so nobody waits for them.
    """

    def __init__(
        self,
        address: str,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        access: Access = OPEN,
    ) -> None:
        """`address`: `host:port`; `pause`: waits between two looks."""
        self._url, self._pause, self._access = f"{access.scheme}://{address}", pause, access
        self._page = MetricsPage(address, _PAGE_TIMEOUT_S, _NOT_THERE, access)
        self._incarnation = next_incarnation(0)
        self._models: tuple[str, ...] = ()
        self._slots_tokens: int | None = None
        """None: this process was not asked for its slots yet."""
        self._found: Mapping[str, float] = defaultdict(float)
        self._gone = False
        self._problems = ProblemLog(logger, "the server")
        self.looked = asyncio.Event()
        """Set when the first question for its models has ended, with or without an answer."""

    async def watch(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_models())
            group.create_task(self._watch_page())

    async def read(self) -> ServerState:
        """All that is known; not ready where the server does not answer."""
        found = self._found
        models = [ModelReport(model, _VERSION, True) for model in self._models]
        if models:
            memory_tokens = int(min(found["memory_tokens"], MAX_COUNT)) or self._slots_tokens or 0
            models[0] = ModelReport(
                model=models[0].model,
                version=_VERSION,
                ready=True,
                pending=min(found["waiting"], MAX_PENDING),
                executing=min(found["running"], MAX_PENDING),
                succeeded=int(min(found["succeeded"], MAX_COUNT)),
                memory_tokens=memory_tokens,
                held_tokens=int(min(found["held_share"], 1.0) * memory_tokens),
            )
        return ServerState(bool(models), self._incarnation, tuple(models), reached=bool(models), gone=self._gone)

    def close(self) -> None:
        self._page.close()

    async def _watch_models(self) -> None:
        while True:
            try:
                context, headers = await self._access.read()
                timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
                connector = aiohttp.TCPConnector(ssl=context or True)
                async with aiohttp.ClientSession(
                    self._url, timeout=timeout, headers=headers, connector=connector
                ) as session:
                    while True:
                        await self._ask(session)
            except (aiohttp.ClientError, TimeoutError, ValueError, OperatorError) as error:
                self._models, self._slots_tokens = (), None
                self._gone = self._gone or isinstance(error, aiohttp.ClientConnectorError)
                self._problems.note("models", f"{self._url}/v1/models: {str(error) or type(error).__name__}")
            self.looked.set()
            await self._pause(_PERIOD_S)

    async def _ask(self, session: aiohttp.ClientSession) -> None:
        """For its models, and what else such servers tell."""
        models = _names(await self._get(session, "/v1/models"))
        if self._slots_tokens is None:
            self._slots_tokens = _slots_tokens(await self._get(session, "/props", absent={}))
        if self._gone:
            self._renew()
        self._models = models
        self._problems.note("models", "")
        self.looked.set()
        await self._pause(_PERIOD_S)

    async def _watch_page(self) -> None:
        while True:
            try:
                found = read_metrics(await self._page.fetch())
            except (MetricsUnavailableError, ValueError) as error:
                self._problems.note("metrics", str(error))
                if isinstance(error, MetricsUnavailableError) and error.gone:
                    self._models, self._gone = (), True
            else:
                self._problems.note("metrics", "")
                if found["computed"] < self._found["computed"] and not self._gone:
                    self._renew()
                self._found = found
            await self._pause(_PAGE_PERIOD_S)

    async def _get(self, session: aiohttp.ClientSession, path: str, absent: Any = None) -> Any:
        async with session.get(path, server_hostname=self._access.server_name) as response:
            if absent is not None and response.status != 200:
                return absent
            response.raise_for_status()
            body = await whole_body(response, _MOST_BYTES)
        try:
            return json.loads(body)
        except RecursionError:
            raise ValueError("is nested too deeply") from None

    def _renew(self) -> None:
        """It is another process."""
        self._gone, self._found = False, defaultdict(float)
        self._incarnation = next_incarnation(self._incarnation)
        logger.info("the server has started anew: incarnation %d", self._incarnation)


def read_metrics(page: bytes) -> Mapping[str, float]:
    """What the page says, by the values of `METRICS`, summed over its series; 0 of what it does not name.

    Raises:
        ValueError: a value that matters is no number from 0.
    """
    found: dict[str, float] = defaultdict(float)
    of_engine: list[bytes] = []
    for line in page.split(b"\n"):
        series, _, number = line.rpartition(b" ")
        name, _, labels = series.partition(b"{")
        meaning = METRICS.get(name)
        if meaning is not None:
            value = float(number)
            if not 0 <= value < MAX_COUNT:
                raise ValueError(f"{name.decode()}: {number!r} is no number from 0")
            found[meaning] += value
        elif name == _CACHE_CONFIG:
            config = {key: int(digits) for key, digits in _BLOCKS.findall(labels)}
            found["memory_tokens"] += min(config.get(b"block_size", 0) * config.get(b"num_gpu_blocks", 0), MAX_COUNT)
        elif name == BLOCKS:
            of_engine.append(line)
    memory, held = memory_tokens(MetricsParser().parse(b"\n".join(of_engine)))
    if memory:
        found |= {"memory_tokens": memory, "held_share": held / memory}
    return found


def _names(listed: Any) -> tuple[str, ...]:
    try:
        names = [str(entry["id"]) for entry in listed["data"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"is no list of models: {error!r}") from error
    for name in names:
        name.encode()  # UnicodeEncodeError, a ValueError: no report can carry it
    if not names:
        raise ValueError("lists no model")
    return tuple(dict.fromkeys(names[:MAX_MODELS]))


def _slots_tokens(props: Any) -> int:
    """How many tokens all slots of a `llama-server` hold together; 0: it does not say."""
    try:
        tokens = int(props["default_generation_settings"]["n_ctx"]) * int(props["total_slots"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return 0
    return min(max(tokens, 0), MAX_COUNT)
