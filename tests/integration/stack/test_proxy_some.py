"""Some models forwarded by the balancer, and all others picked for, through a real Envoy to real Tritons."""

import dataclasses
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton_grpc
import tritonclient.http.aio as triton_http
import yarl
from support import fronts
from support.inputs import input_of
from support.running import running
from support.stack import Stack, records
from support.waiting import PATIENCE_S, eventually
from tritonclient.utils import InferenceServerException

from balancer.bootstrap.native import NativeOptions
from balancer.kernel.compiled import library
from balancer.native import envoy_module as module
from balancer.stack.envoyproxy import EnvoyProcess
from balancer.stack.process import free_port_range
from balancer.stack.stack import read_samples, sum_of

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

KEPT = {"proxy": {"cache_ttl_s": 60}}
FORWARDED = "string_upper"
ODD = '"] = 1, ["x\n\\ --(.*) %s'
"""A name that would break what it is written into, were it written as it is."""
ODD_IN_PATHS = "é 1:%x"
"""Likewise, and one that a path may have, encoded."""
NAMES = (FORWARDED, "any", ODD, ODD_IN_PATHS)
"""What is forwarded; the names of cascades, nobody else knows."""
LOG = "access.log"
WAYS: dict[str, tuple[str, bytes, dict[str, str]]] = {
    "infer": ("infer", b'{"inputs":[{"name":"TEXT","datatype":"BYTES","shape":[1,1],"data":["a"]}]}', {}),
    "raw": ("infer", b"\4\0\0\0true", {"Inference-Header-Content-Length": "0"}),
    "large": (
        "infer",
        b'{"inputs":[{"name":"TEXT","datatype":"BYTES","shape":[1,1],"data":["%s"]}]}' % (b"a" * 2**21),
        {},
    ),
    "generate": ("generate", b'{"TEXT": "a"}', {}),
    "generate_stream": ("generate_stream", b'{"TEXT": "a"}', {}),
    "encoded": ("%67enerate", b'{"TEXT": "a"}', {}),
}
"""Ways to have `FORWARDED` execute: a verb, a body, headers."""
LIMITS = {"requests": {"requests_per_s": 0.001}, "rows": {"rows_per_s": 0.001}}
TENANTS = [f"{limit} {way}" for limit in LIMITS for way in (*WAYS, "either")]
"""Each is limited by one of both."""
MODELS = (FORWARDED, "several_outputs", "decoupled_count")


@dataclasses.dataclass
class FanOut(Stack):
    """Envoy has the module, which finds nothing that a balancer shares."""

    def new_envoy(self) -> EnvoyProcess:
        envoy = super().new_envoy()
        native = NativeOptions(module.PATH, library.PATH, self.directory / "shared")
        envoy.options = dataclasses.replace(envoy.options, native=native)
        return envoy


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=fronts.one_of("native", "pick", "asking"))
async def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    directory: Path = tmp_path_factory.mktemp("some")
    asking = request.param == "asking"
    settings = {
        "models": dict.fromkeys(MODELS, KEPT),
        "envoy": {
            "frontend": "pick" if asking else request.param,
            "shared_folder": str(directory / "shared"),
            "access_log": str(directory / LOG),
            "forwarded": [*NAMES, "decoupled_count"],
        },
        "listen": {"fleet": f"127.0.0.1:{free_port_range(2)}"},
        "proxy": {
            "cascades": {name: [FORWARDED] for name in NAMES[1:]},
            "tenants": {"named": {name: LIMITS[name.split()[0]] for name in TENANTS}},
        },
    }
    stack = (FanOut if asking else Stack)(directory, workers=2, settings=settings, models=MODELS)
    async with running(stack):
        yield stack


async def counts(stack: Stack) -> dict[str, float]:
    """Decisions, requests that ended, those that came to where the proxy keeps answers, and what must not be."""
    samples = await read_samples(stack.admin())
    names = ("decisions", "requests", "proxy_cache", "fallbacks", "handler_errors")
    return {name: sum_of(samples, f"balancer_{name}_total") for name in names}


async def counted(stack: Stack, before: dict[str, float], **more: int) -> None:
    """Wait until that many more are counted, and no other one."""
    await eventually(
        lambda: counts(stack),
        f"these more are counted: {more}",
        until=lambda found: found == {name: count + more.get(name, 0) for name, count in before.items()},
    )


def text(of: Any, value: str) -> list[Any]:
    return [input_of(of, "TEXT", np.array([[value]], np.object_))]


def addends(of: Any) -> list[Any]:
    tensors = [of.InferInput(name, [1, 4], "INT32") for name in ("A", "B")]
    for tensor in tensors:
        tensor.set_data_from_numpy(np.arange(4, dtype=np.int32)[None])
    return tensors


@pytest.mark.parametrize(
    ("of", "names"),
    [(triton_grpc, NAMES), (triton_http, [name for name in NAMES if name != ODD])],
    ids=["grpc", "rest"],
)
async def test_models_that_are_named_are_forwarded_and_count_once(stack: Stack, of: Any, names: list[str]) -> None:
    before = await counts(stack)
    async with of.InferenceServerClient(stack.url) as client:
        for name in names:
            for _ in range(2):
                result = await client.infer(name, text(of, f"{name} {of.__name__}"))
                assert result.as_numpy("UPPER")[0, 0].decode() == f"{name} {of.__name__}".upper()
    # The second one of each is answered by what was kept of the first.
    await counted(stack, before, decisions=len(names), requests=2 * len(names), proxy_cache=2 * len(names))


@pytest.mark.parametrize("of", [triton_grpc, triton_http], ids=["grpc", "rest"])
async def test_others_are_picked_for_whatever_their_headers_say(stack: Stack, of: Any) -> None:
    before = await counts(stack)
    async with of.InferenceServerClient(stack.url) as client:
        for headers in ({}, {"x-gateway-destination-endpoint-forwarded": "true"}):
            result = await client.infer("several_outputs", addends(of), headers=headers)
            assert result.as_numpy("SUM").tolist() == [[0, 2, 4, 6]]
    await counted(stack, before, decisions=2, requests=2)


async def test_what_is_not_converted_is_picked_for(stack: Stack) -> None:
    before = await counts(stack)
    raw, headers = b"\4\0\0\0true", {"Inference-Header-Content-Length": "0"}
    async with aiohttp.ClientSession() as session:
        url = f"http://{stack.url}/v2/models/{FORWARDED}"
        direct = f"http://127.0.0.1:{stack.specs[0].http_port}/v2/models/{FORWARDED}"
        async with (
            session.post(f"{url}/infer", data=raw, headers=headers) as response,
            session.post(f"{direct}/infer", data=raw, headers=headers) as alone,
        ):
            assert (response.status, await response.read()) == (alone.status, await alone.read())
        async with session.post(f"{url}/generate", json={"TEXT": "quiet"}) as response:
            assert (await response.json(content_type=None))["UPPER"] == "QUIET"
    await counted(stack, before, decisions=2, requests=2)


async def test_a_stream_is_forwarded_too(stack: Stack) -> None:
    async def one() -> AsyncIterator[dict[str, Any]]:
        count = input_of(triton_grpc, "COUNT", np.array([3], np.int32))
        yield {"model_name": "decoupled_count", "inputs": [count]}

    before = await counts(stack)
    found = []
    async with triton_grpc.InferenceServerClient(stack.url) as client:
        async for result, error in client.stream_infer(one(), stream_timeout=PATIENCE_S):
            assert error is None
            found.append(int(result.as_numpy("INDEX")[0]))
            if len(found) == 3:
                break
    assert found == [0, 1, 2]
    await counted(stack, before, decisions=1, requests=1)


async def sent(stack: Stack, way: str, tenant: str, model: str = FORWARDED) -> tuple[int, str, Mapping[str, str]]:
    """Status, body and headers of an answer."""
    verb, body, headers = WAYS[way]
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            yarl.URL(f"http://{stack.url}/v2/models/{model}/{verb}", encoded=True),
            data=body,
            headers={**headers, "x-tenant": tenant},
        ) as response,
    ):
        return response.status, (await response.read()).decode("latin-1"), response.headers


@pytest.mark.parametrize("way", WAYS)
async def test_a_tenants_requests_are_limited_on_every_way(stack: Stack, way: str) -> None:
    tenant = f"requests {way}"
    status, body, _ = await sent(stack, way, tenant)
    assert status == 200, body
    status, body, headers = await sent(stack, way, tenant)
    assert (status, "sends more than it may" in body) == (429, True)
    assert int(headers["retry-after"]) > 100
    # Whoever else sends is not.
    assert [(await sent(stack, way, "modest"))[0] for _ in range(3)] == [200] * 3


async def test_a_tenants_requests_count_together_whatever_their_way(stack: Stack) -> None:
    statuses = [(await sent(stack, way, "requests either"))[0] for way in WAYS]
    assert statuses == [200] + [429] * (len(WAYS) - 1)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "infer"])
async def test_what_has_rows_that_cannot_be_counted_is_refused_where_those_are_limited(stack: Stack, way: str) -> None:
    for _ in range(2):
        status, body, _ = await sent(stack, way, f"rows {way}")
        assert (status, "cannot be counted" in body) == (400, True)
    assert [(await sent(stack, "infer", f"rows {way}"))[0] for _ in range(2)] == [200, 429]


async def test_models_that_are_not_forwarded_have_no_such_limit(stack: Stack) -> None:
    async with triton_http.InferenceServerClient(stack.url) as client:
        for _ in range(3):
            headers = {"x-tenant": "rows either"}
            result = await client.infer("several_outputs", addends(triton_http), headers=headers)
            assert result.as_numpy("SUM").tolist() == [[0, 2, 4, 6]]


async def test_while_the_balancer_is_away_workers_answer_where_no_tenant_is_limited(stack: Stack) -> None:
    await stack.balancer.stop()
    try:
        for of in (triton_grpc, triton_http):
            async with of.InferenceServerClient(stack.url) as client:
                assert (await client.infer("several_outputs", addends(of))).as_numpy("SUM").tolist() == [[0, 2, 4, 6]]
                with pytest.raises(InferenceServerException, match="cannot keep limits of tenants; retry later"):
                    await client.infer(FORWARDED, text(of, "alone"))
    finally:
        await stack.start_balancer()
        await stack.all_ready()


async def test_envoys_log_has_one_line_of_each(stack: Stack) -> None:
    """The last test: Envoy writes the rest when it ends."""
    async with triton_grpc.InferenceServerClient(stack.url) as client:
        await client.infer(FORWARDED, text(triton_grpc, "told"), request_id="by its message")
    async with triton_http.InferenceServerClient(stack.url) as client:
        await client.infer(FORWARDED, text(triton_http, "told"), headers={"x-request-id": "by its header"})
    await stack.envoy.stop()
    lines = records(stack.directory / LOG)
    assert len([line for line in lines if line["triton_request_id"] == "by its message"]) == 1
    assert len([line for line in lines if line["request_id"] == "by its header"]) == 1
