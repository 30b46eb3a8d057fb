"""Requests of OpenAI's API through the proxy of one process to fake workers, which say what tests say, and die."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer
from support.fake_openai_worker import FakeOpenAIWorker, Speak, Speaker
from support.fake_worker import FakeWorker
from support.proxied import Rig, proxied
from support.waiting import eventually

from balancer.extproc.names import CHAT

ASKED: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "When?"}], "stream": True}
RESUME = {"resume": True}


class Client:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session, self.url = session, url

    async def ask(self, **asked: Any) -> tuple[int, str, Any]:
        """Status, body and headers."""
        async with self.session.post(self.url, json=ASKED | asked) as response:
            return response.status, (await response.read()).decode(), response.headers


@asynccontextmanager
async def asking(
    *speak: Speak, proxy: dict[str, Any] | None = None, **sections: Any
) -> AsyncIterator[tuple[Client, Rig, list[FakeOpenAIWorker]]]:
    """A client before the proxy of workers that speak so, by round robin."""
    workers = [FakeOpenAIWorker(f"w{number}", each) for number, each in enumerate(speak)]
    listen = {"listen": {"fleet": "127.0.0.1:1"}}
    async with proxied(workers, proxy=proxy or {}, **listen, **sections) as rig:
        server = RawTestServer(rig.front.prompts.answer, handler_cancellation=True)
        await server.start_server()
        try:
            async with aiohttp.ClientSession() as session:
                yield Client(session, str(server.make_url(CHAT))), rig, workers
        finally:
            await server.close()


def saying(*texts: str, end: bool = True) -> Speak:
    return lambda speaker: speaker.say(*texts, end=end)


def texts(body: str) -> list[str]:
    found = []
    for line in body.split("\n\n"):
        if line.startswith("data: {"):
            event = json.loads(line.removeprefix("data: "))
            found += [choice["delta"]["content"] for choice in event.get("choices", [])]
    return found


def error_of(body: str) -> dict[str, Any]:
    """The last event, which is an error."""
    found: dict[str, Any] = json.loads(body.rstrip().rpartition("data: ")[2])["error"]
    return found


async def test_a_stream_passes_unchanged_and_is_counted_with_its_tokens() -> None:
    async with asking(saying("At", " six")) as (client, rig, (worker,)):
        status, body, headers = await client.ask()
        assert (status, texts(body), body.endswith("data: [DONE]\n\n")) == (200, ["At", " six"], True)
        assert headers["x-of-worker"] == "yes"
        assert worker.asked == [ASKED]
        assert rig.in_flight == 0
        assert rig.metric("balancer_tokens_total", kind="output") == 2
        assert rig.metric("gen_ai_server_time_to_first_token_seconds_count") == 1


async def test_an_answer_in_one_piece_passes_with_its_status() -> None:
    async def refuse(_: Speaker) -> web.StreamResponse:
        return web.json_response({"error": {"message": "too long"}}, status=400)

    async with asking(refuse) as (client, rig, _):
        status, body, _ = await client.ask()
        assert (status, json.loads(body)) == (400, {"error": {"message": "too long"}})
        assert rig.in_flight == 0


async def test_headers_pass_less_those_of_the_connection() -> None:
    async with asking(saying("At")) as (client, _, (worker,)):
        headers = {"authorization": "Bearer x", "accept-encoding": "gzip", "x-gateway-destination-endpoint": "1.2.3.4"}
        async with client.session.post(client.url, json=ASKED, headers=headers) as response:
            await response.read()
        (got,) = worker.headers
        assert got["authorization"] == "Bearer x"
        assert got["accept-encoding"] == "identity"
        assert "x-gateway-destination-endpoint" not in got


async def test_what_cannot_go_is_refused_as_openai_writes_it() -> None:
    async with asking(saying("At")) as (client, _, (worker,)):
        status, body, _ = await client.ask(model=5)
        assert status == 400
        assert "is the name of a model" in json.loads(body)["error"]["message"]
        assert worker.asked == []


async def test_only_workers_that_speak_openai_are_asked() -> None:
    async with proxied([FakeWorker("triton")]) as rig:
        server = RawTestServer(rig.front.prompts.answer)
        await server.start_server()
        async with aiohttp.ClientSession() as session, session.post(server.make_url(CHAT), json=ASKED) as response:
            assert response.status == 503
            assert (await response.json())["error"]["type"] == "service_unavailable_error"
        await server.close()
        assert rig.worker.requests == []


async def test_a_worker_that_cannot_be_reached_is_left_for_another() -> None:
    async with asking(saying("a"), saying("b")) as (client, rig, workers):
        await workers[0].stop()
        for _ in range(2):
            assert texts((await client.ask())[1]) == ["b"]
        assert rig.metric("balancer_proxy_retries_total", result="made") >= 1


async def test_where_a_worker_dies_in_mid_stream_an_event_says_so() -> None:
    async with asking(saying("At", end=False), saying("no")) as (client, rig, workers):
        status, body, _ = await client.ask()
        assert (status, texts(body)) == (200, ["At"])
        assert error_of(body)["type"] == "server_error"
        assert workers[1].asked == []
        assert rig.in_flight == 0


async def test_another_worker_goes_on_where_it_may() -> None:
    async with asking(saying("At", " six", end=False), saying(" sharp"), proxy=RESUME) as (client, rig, workers):
        _, body, _ = await client.ask(max_tokens=3)
        assert texts(body) == ["At", " six", " sharp"]
        assert ": goes on at worker w1\n\n" in body
        assert body.endswith("data: [DONE]\n\n")
        (rest,) = workers[1].asked
        assert rest["messages"][-1] == {"role": "assistant", "content": "At six"}
        assert rest["max_tokens"] == 1
        assert rig.metric("balancer_proxy_resumed_total", result="made") == 1
        assert rig.in_flight == 0


async def test_it_goes_on_once() -> None:
    async with asking(*[saying("x", end=False)] * 3, proxy=RESUME) as (client, rig, workers):
        _, body, _ = await client.ask()
        assert texts(body) == ["x", "x"]
        assert error_of(body)["message"]
        assert sum(len(worker.asked) for worker in workers) == 2
        assert rig.metric("balancer_proxy_resumed_total", result="impossible") == 1


async def test_where_no_other_worker_is_there_or_takes_it_the_stream_ends_by_an_error() -> None:
    async def refuse(_: Speaker) -> web.StreamResponse:
        return web.json_response({"error": {"message": "unknown member"}}, status=400)

    async with asking(saying("x", end=False), proxy=RESUME) as (client, rig, _):
        assert error_of((await client.ask())[1])["type"] == "server_error"
        assert rig.metric("balancer_proxy_resumed_total", result="no_worker") == 1
    async with asking(saying("x", end=False), refuse, proxy=RESUME) as (client, rig, _):
        assert error_of((await client.ask())[1])["type"] == "server_error"
        assert rig.metric("balancer_proxy_resumed_total", result="refused") == 1


async def test_where_nothing_was_said_another_worker_is_asked_the_same() -> None:
    async with asking(saying(end=False), saying("At"), proxy=RESUME) as (client, _, workers):
        assert texts((await client.ask(tools=[{"type": "function"}]))[1]) == ["At"]
        assert workers[1].asked == workers[0].asked


async def test_a_client_that_leaves_ends_its_request_at_the_worker() -> None:
    begun = asyncio.Event()

    async def never(speaker: Speaker) -> web.StreamResponse:
        begun.set()
        return await asyncio.Event().wait()  # it never does

    async with asking(never, proxy=RESUME) as (client, rig, (worker,)):
        call = asyncio.create_task(client.ask())
        await begun.wait()
        call.cancel()
        await asyncio.wait_for(worker.left.wait(), 30)
        await eventually(lambda: rig.in_flight == 0)
        assert rig.metric("balancer_proxy_resumed_total") == 0


async def test_an_event_without_end_ends_the_stream_and_not_the_balancer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("balancer.proxy.prompts.forwarded._MOST_EVENT_BYTES", 100)

    async def endless(speaker: Speaker) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(speaker.request)
        await response.write(b"data: {" + b"x" * 200)
        await asyncio.Event().wait()
        return response

    async with asking(endless) as (client, rig, (worker,)):
        status, body, _ = await client.ask()
        assert (status, error_of(body)["type"]) == (503, "service_unavailable_error")
        await asyncio.wait_for(worker.left.wait(), 30)
        assert rig.in_flight == 0


@pytest.mark.parametrize("resume", [False, True])
async def test_bodies_take_no_more_room_than_there_is(monkeypatch: pytest.MonkeyPatch, resume: bool) -> None:
    """Until their answers begin; or end, where they may be needed again."""
    monkeypatch.setattr("balancer.proxy.prompts.service._MOST_KEPT_BYTES", 1000)
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def waiting(speaker: Speaker) -> web.StreamResponse:
        begun.set()
        await goes_on.wait()
        return await speaker.say("x")

    async with asking(waiting, proxy={"resume": resume}) as (client, rig, (worker,)):
        long = {"messages": [{"role": "user", "content": "x" * 800}]}
        first = asyncio.create_task(client.ask(**long))
        await begun.wait()
        status, body, headers = await client.ask(**long)
        assert (status, json.loads(body)["error"]["type"]) == (429, "rate_limit_error")
        assert int(headers["retry-after"]) >= 1
        assert rig.metric("balancer_proxy_prompts_total", result="no_room") == 1
        goes_on.set()
        assert (await first)[0] == 200
        assert (await client.ask(**long))[0] == 200
        assert len(worker.asked) == 2
        assert rig.front.prompts._kept_bytes == 0


async def test_a_tenant_that_sends_too_much_is_turned_away() -> None:
    limits = {"tenants": {"requests_per_s": 0.001}}
    async with asking(saying("x"), proxy=limits) as (client, _, _):
        assert (await client.ask())[0] == 200
        status, body, headers = await client.ask()
        assert (status, json.loads(body)["error"]["type"]) == (429, "rate_limit_error")
        assert int(headers["retry-after"]) >= 1


async def test_what_a_tenant_uses_of_tokens_is_charged_as_it_comes_and_settled_by_the_answer() -> None:
    """A prompt of some 20 tokens by its bytes; the answer tells 3 and 2."""
    usage = {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}

    async def tell(_: Speaker) -> web.StreamResponse:
        return web.json_response({"choices": [{"text": "six"}], **usage})

    async def refuse(_: Speaker) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=400)

    limits = {"tenants": {"tokens_per_s": 0.01, "burst_s": 3600}}
    async with asking(tell, proxy=limits) as (client, rig, _):
        statuses = [(await client.ask(stream=False))[0] for _ in range(9)]
        # 36 at first; each leaves 5 less, and one goes while there is as much as its prompt seems to have.
        assert statuses == sorted(statuses)
        assert 2 <= statuses.count(200) < 9
        assert rig.metric("balancer_refusals_total", reason="tenant") == statuses.count(429)
    async with asking(refuse, proxy=limits) as (client, rig, _):
        assert {(await client.ask(stream=False))[0] for _ in range(9)} == {400}, "what nobody computed costs nothing"
