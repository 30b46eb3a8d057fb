"""What an agent reads of a server of OpenAI's API, by the names that each server gives its metrics."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from support.waiting import eventually

from balancer.agent.openai_source import OpenAISource, read_metrics
from balancer.reports.codec import ReportDecoder, ReportEncoder
from balancer.scheduler.events import Report

VLLM = b"""\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="llama"} 3.0
vllm:num_requests_waiting{engine="0",model_name="llama"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="llama"} 0.25
vllm:cache_config_info{block_size="16",engine="0",mamba_block_size="64",num_gpu_blocks="1000",hash_block_size="8"} 1.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="llama"} 5.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="llama"} 4.0
vllm:prompt_tokens_total{engine="0",model_name="llama"} 900.0
"""
SGLANG = b"""\
sglang:num_running_reqs{model_name="llama"} 3.0
sglang:num_queue_reqs{model_name="llama"} 2.0
sglang:token_usage{model_name="llama"} 0.25
sglang:max_total_num_tokens{model_name="llama"} 16000.0
sglang:num_requests_total{model_name="llama"} 9.0
"""
LLAMA = b"""\
llamacpp:prompt_tokens_total 900
llamacpp:requests_processing 3
llamacpp:requests_deferred 2
"""


TRITON = b"""\
nv_inference_request_success{model="llama",version="1"} 9
nv_inference_pending_request_count{model="llama",version="1"} 2
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="llama",version="1"} 250
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="llama",version="1"} 50
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="llama",version="1"} 64
"""


class FakeServer:
    """Answers as such a server does; not one that computes anything."""

    def __init__(self, page: bytes, slots: int = 0) -> None:
        self.page, self.slots, self.models = page, slots, ["llama", "llama:adapter"]
        self.asked_for_slots, self.props = 0, b""
        self.computes = asyncio.Event()
        """Until it is set, the page of metrics is not told."""
        self.computes.set()

    @contextlib.asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/props", self._props)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        try:
            yield f"127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        await self.computes.wait()
        return web.Response(body=self.page)

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": model} for model in self.models]})

    async def _props(self, _: web.Request) -> web.Response:
        self.asked_for_slots += 1
        if self.props:
            return web.Response(body=self.props)
        if not self.slots:
            return web.Response(status=404)
        return web.json_response({"default_generation_settings": {"n_ctx": 2048}, "total_slots": self.slots})


@contextlib.asynccontextmanager
async def reading(address: str) -> AsyncIterator[OpenAISource]:
    source = OpenAISource(address)
    task = asyncio.create_task(source.watch())
    try:
        await source.looked.wait()
        yield source
    finally:
        task.cancel()
        await asyncio.wait([task])
        source.close()


@pytest.mark.parametrize(
    ("server", "finished", "memory_tokens", "held_tokens"),
    [
        (FakeServer(VLLM), 9, 16_000, 4000),
        (FakeServer(SGLANG), 9, 16_000, 4000),
        (FakeServer(LLAMA, slots=4), 0, 8192, 0),
    ],
    ids=["vllm", "sglang", "llama-server"],
)
async def test_each_server_s_names_are_known(
    server: FakeServer, finished: int, memory_tokens: int, held_tokens: int
) -> None:
    async with server.listening() as address, reading(address) as source:
        state = await eventually(source.read, until=lambda state: state.models and state.models[0].executing)
    first, adapter = state.models
    assert state.ready
    assert (first.model, first.executing, first.pending, first.succeeded) == ("llama", 3.0, 2.0, finished)
    assert (first.memory_tokens, first.held_tokens) == (memory_tokens, held_tokens)
    assert (adapter.model, adapter.ready, adapter.pending) == ("llama:adapter", True, 0.0)
    carried = ReportDecoder().decode(ReportEncoder().encode(Report("w", state.incarnation, 0, True, state.models)))
    assert carried.models == state.models


def test_triton_s_openai_front_end_tells_what_triton_and_its_engine_do() -> None:
    """By names as documented: no such engine ran here."""
    found = read_metrics(TRITON)
    assert (found["succeeded"], found["waiting"], found["memory_tokens"], found["held_share"]) == (9, 2, 16_000, 0.2)


async def test_a_server_that_is_away_is_not_ready_and_comes_back_as_another_one() -> None:
    server = FakeServer(LLAMA, slots=4)
    async with contextlib.AsyncExitStack() as stack:
        async with server.listening() as address:
            source = await stack.enter_async_context(reading(address))
            before = await eventually(source.read, until=lambda state: state.models and state.models[0].executing)
            server.page = LLAMA.replace(b"900", b"10")
            # Its counters have fallen: another process.
            fell = await eventually(source.read, until=lambda state: state.incarnation > before.incarnation)
            assert fell.ready
        gone = await eventually(source.read, until=lambda state: state.gone)
        assert not gone.ready
        async with server.listening(int(address.rpartition(":")[2])):
            back = await eventually(source.read, until=lambda state: state.ready)
            assert back.incarnation > fell.incarnation


async def test_a_server_that_computes_and_tells_no_metrics_meanwhile_stays_ready() -> None:
    server = FakeServer(LLAMA, slots=4)
    async with server.listening() as address, reading(address) as source:
        await eventually(source.read, until=lambda state: state.models and state.models[0].executing)
        server.computes.clear()
        server.models = ["llama", "another"]
        state = await eventually(source.read, until=lambda state: state.models[1].model == "another")
        assert (state.ready, state.models[0].executing) == (True, 3.0)
        server.computes.set()


async def test_a_list_of_many_models_is_read_whole_and_slots_are_asked_for_once() -> None:
    server = FakeServer(LLAMA)
    server.models = [f"llama:{number:0>200}" for number in range(1000)]
    async with server.listening() as address, reading(address) as source:
        assert len((await source.read()).models) == 1000
        server.models = ["llama"]
        await eventually(source.read, until=lambda state: len(state.models) == 1)
    assert server.asked_for_slots == 1


@pytest.mark.parametrize(
    "props",
    [b'{"default_generation_settings": {"n_ctx": 1e999}, "total_slots": 4}', b'{"total_slots": -1}', b"[]"],
)
async def test_slots_that_make_no_sense_are_not_believed(props: bytes) -> None:
    server = FakeServer(LLAMA)
    server.props = props
    async with server.listening() as address, reading(address) as source:
        state = await source.read()
    assert (state.ready, state.models[0].memory_tokens) == (True, 0)


async def test_a_model_whose_name_no_report_can_carry_makes_the_server_not_ready() -> None:
    server = FakeServer(LLAMA)
    server.models = ["\ud800"]
    async with server.listening() as address, reading(address) as source:
        assert not (await source.read()).ready


@pytest.mark.parametrize("value", [b"nan", b"-1", b"1e300", b"x"])
def test_a_value_that_is_none_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"number|float"):
        read_metrics(b"vllm:num_requests_running " + value + b"\n")


def test_pages_with_much_else_are_read_for_what_matters() -> None:
    assert read_metrics(b'vllm:e2e_request_latency_seconds_bucket{le="1"} x\n\n# HELP\nfoo\n') == {}
