"""Answers pushed to browsers, the example: a real Envoy, NATS and ingress, an emulated language model."""

import importlib.util
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml
from aiohttp import web
from integration.ingress.test_events import SCENARIO, TOKENS
from integration.ingress.test_ingress import new_ingress
from support.brokers import RealNats
from support.running import running

from balancer.stack.process import free_ports
from balancer.stack.stack import OwnStack
from dev.browser import MISSING, chromium, tab
from dev.emulated_llm.process import new_emulated

pytestmark = pytest.mark.asyncio(loop_scope="module")
EXAMPLE = Path(__file__).parents[3] / "examples" / "push"
ASK = {"model": "llama", "prompt": "tide", "max_tokens": TOKENS, "stream": True}


def example() -> Any:
    spec = importlib.util.spec_from_file_location("push_server", EXAMPLE / "server.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Push:
    """The example behind a stack's Envoy; `start` and `stop` are of the example's server alone."""

    def __init__(self, stack: OwnStack, broker: RealNats, port: int) -> None:
        self.url, self.broker, self._port = f"http://{stack.url}/push", broker, port

    async def start(self) -> None:
        self._runner = web.AppRunner(example().application(self.broker.url))
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()

    async def stop(self) -> None:
        await self._runner.cleanup()

    def connected(self, http: aiohttp.ClientSession, **headers: str) -> Any:
        return http.ws_connect(f"{self.url}/socket", headers={"Origin": self.url.removesuffix("/push"), **headers})


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["native", "pick"])
async def push(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Push]:
    (port,), tmp_path = free_ports(1), tmp_path_factory.mktemp("push")
    overlay = yaml.safe_load((EXAMPLE / "overlay.yaml").read_text())
    (cluster,) = overlay["static_resources"]["clusters"]
    (endpoint,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    endpoint["endpoint"]["address"]["socket_address"]["port_value"] = port
    (tmp_path / "overlay.yaml").write_text(yaml.safe_dump(overlay))
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    servers = new_emulated({"llm-0": "*"}, str(tmp_path / "scenario.yaml"), tmp_path)
    envoy = {"envoy": {"frontend": request.param, "overlay": str(tmp_path / "overlay.yaml")}}
    broker = RealNats(tmp_path)
    async with OwnStack(tmp_path, language_models=servers, settings=envoy) as stack:
        push = Push(stack, broker, port)
        async with running(broker, new_ingress(stack, broker, "--events", "events")):
            await push.start()
            try:
                yield push
            finally:
                await push.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def heard(socket: aiohttp.ClientWebSocketResponse, until: str, count: int = 1) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    while sum(until in each for each in messages) < count:
        messages.append(await socket.receive_json(timeout=30))
        assert until == "error" or "error" not in messages[-1], messages[-1]
    return messages


async def told(
    push: Push, http: aiohttp.ClientSession, said: dict[str, Any], until: str = "answer", count: int = 1
) -> list[dict[str, Any]]:
    """What is heard over a connection of its own, which is closed then."""
    async with push.connected(http) as socket:
        await socket.send_json(said)
        return await heard(socket, until, count)


async def test_events_and_the_answer_come_and_after_a_broken_connection_too(
    push: Push, http: aiohttp.ClientSession
) -> None:
    said = {"id": secrets.token_hex(16), "ask": ASK}
    *events, last = await told(push, http, said)
    assert [each["sequence"] for each in events] == [*range(len(events))]
    assert last["answer"].startswith("".join(f"data: {each['event']}\n\n" for each in events))
    assert len(events) + 1 > TOKENS / 2, "they come as they are said, and the last perhaps behind the answer"
    broken = {**said, "id": secrets.token_hex(16)}
    await told(push, http, broken, until="event", count=2)
    for again in (broken, said):
        assert (await told(push, http, again))[-1]["answer"].count("data: ") > TOKENS
    ids = Counter(each.id for each in await push.broker.said())
    assert ids[said["id"]] == ids[broken["id"]] == 1, "what is asked again is answered once"


@pytest.mark.parametrize("push", ["native"], indirect=True)
async def test_who_follows_while_the_broker_was_away_is_asked_to_come_again(
    push: Push, http: aiohttp.ClientSession
) -> None:
    said = {"id": secrets.token_hex(16), "ask": ASK}
    async with push.connected(http) as socket:
        await socket.send_json(said)
        await heard(socket, "event")
        await push.broker.kill()
        await push.broker.start()
        while (await socket.receive(timeout=60)).type is aiohttp.WSMsgType.TEXT:
            pass
    assert (await told(push, http, said))[-1]["answer"].count("data: ") > TOKENS


@pytest.mark.parametrize("push", ["native"], indirect=True)
async def test_what_cannot_be_is_refused_in_words(push: Push, http: aiohttp.ClientSession) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
        async with push.connected(http, Origin="http://elsewhere.example"):
            pass
    async with push.connected(http) as socket:
        for wrong in (
            "{",
            "[]",
            "[" * 9999,
            '{"id": "*", "ask": {}}',
            '{"id": 7, "ask": {}}',
            f'{{"id": "{"a" * 32}"}}',
        ):
            await socket.send_str(wrong)
            assert "expected" in (await socket.receive_json(timeout=30))["error"]
        unknown = {"id": secrets.token_hex(16), "ask": {**ASK, "model": "nobody"}}
        await socket.send_json(unknown)
        assert "nobody" in (await heard(socket, "dead"))[-1]["dead"]
        for _ in range(9):
            await socket.send_json({"id": secrets.token_hex(16), "ask": ASK})
        assert "wait" in (await heard(socket, "error"))[-1]["error"]
        await socket.send_str("x" * 2**17)
        while (last := await socket.receive(timeout=30)).type is aiohttp.WSMsgType.TEXT:
            pass
        assert last.type in {aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED}


@pytest.mark.skipif(chromium() is None, reason=MISSING)
@pytest.mark.parametrize("push", ["native"], indirect=True)
async def test_the_page_shows_tokens_as_they_come_and_goes_on_after_a_restart(push: Push) -> None:
    async with tab() as page:
        await page.open(f"{push.url}/")
        await page.until("document.getElementById('line').textContent === 'connected'")
        await page.until("document.getElementById('model').value === 'llama'")
        await page.evaluate("document.querySelector('button').click()")
        await page.until("document.querySelector('li p')?.textContent.length > 0")
        await push.stop()
        await page.until("document.getElementById('line').textContent.startsWith('connecting again')")
        await push.start()
        await page.until("document.querySelector('li small')?.textContent.includes('events came')")
        assert page.problems == []
