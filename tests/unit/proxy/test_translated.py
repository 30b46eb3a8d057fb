"""OpenAI's clients before the proxy of one process, at fake Tritons that have `generate_stream`."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer
from support.fake_openai_worker import FakeOpenAIWorker, Speak, Speaker
from support.proxied import Rig, proxied
from support.waiting import eventually

from balancer.extproc.names import CHAT, COMPLETIONS

ASKED: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "When?"}], "stream": True}


class Client:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session, self.url = session, url

    async def ask(self, path: str = CHAT, **asked: Any) -> tuple[int, str]:
        """Status and body."""
        members = {name: value for name, value in (ASKED | asked).items() if value is not None}
        async with self.session.post(self.url + path, json=members) as response:
            return response.status, (await response.read()).decode()


@asynccontextmanager
async def asking(
    tmp_path: Path, *speak: Speak, proxy: dict[str, Any] | None = None, **of_model: Any
) -> AsyncIterator[tuple[Client, Rig, list[FakeOpenAIWorker]]]:
    """A client before the proxy of Tritons that speak so, by round robin."""
    template = tmp_path / "chat_template.jinja"
    template.write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>")
    workers = [FakeOpenAIWorker(f"w{number}", each, "triton") for number, each in enumerate(speak)]
    openai = {"chat_template": str(template), "defaults": {"max_tokens": 5}}
    models = {"m": {"proxy": {"openai": openai}, **of_model}}
    async with proxied(workers, proxy=proxy or {}, models=models, listen={"fleet": "127.0.0.1:1"}) as rig:
        server = RawTestServer(rig.front.prompts.answer, handler_cancellation=True)
        await server.start_server()
        try:
            async with aiohttp.ClientSession() as session:
                yield Client(session, str(server.make_url("")).rstrip("/")), rig, workers
        finally:
            await server.close()


def saying(*texts: str, error: str = "", end: bool = True) -> Speak:
    return lambda speaker: speaker.generate(*texts, error=error, end=end)


def refusing(status: int, words: str) -> Speak:
    async def refuse(_: Speaker) -> web.StreamResponse:
        return web.json_response({"error": words}, status=status)

    return refuse


def texts(body: str) -> list[str]:
    found = []
    for line in body.split("\n\n"):
        if line.startswith("data: {"):
            event = json.loads(line.removeprefix("data: "))
            found += [choice["delta"]["content"] for choice in event.get("choices", []) if choice["delta"]]
    return found


def error_of(body: str) -> dict[str, Any]:
    """The last event, or all of the body, which is an error."""
    found: dict[str, Any] = json.loads(body.rstrip().rpartition("data: ")[2])["error"]
    return found


async def test_a_stream_is_translated_and_counted(tmp_path: Path) -> None:
    async with asking(tmp_path, saying("At", " six")) as (client, rig, (worker,)):
        status, body = await client.ask()
        assert (status, texts(body), body.endswith("data: [DONE]\n\n")) == (200, ["At", " six"], True)
        assert worker.paths == ["/v2/models/m/generate_stream"]
        asked = {
            "text_input": "<user>When?<assistant>",
            "max_tokens": 5,
            "stream": True,
            "exclude_input_in_output": True,
        }
        assert worker.asked == [asked]
        assert rig.in_flight == 0
        assert rig.metric("balancer_tokens_total", kind="output") == 2
        assert rig.metric("gen_ai_server_time_to_first_token_seconds_count") == 1


async def test_an_answer_in_one_piece_is_gathered(tmp_path: Path) -> None:
    async with asking(tmp_path, saying("At", " six")) as (client, rig, _):
        status, body = await client.ask(stream=None)
        assert (status, json.loads(body)["choices"][0]["message"]["content"]) == (200, "At six")
        status, body = await client.ask(COMPLETIONS, stream=None, messages=None, prompt="High: ")
        assert (status, json.loads(body)["choices"][0]["text"]) == (200, "At six")
        assert rig.in_flight == 0


async def test_a_stop_ends_the_request_at_the_worker(tmp_path: Path) -> None:
    async def endless(speaker: Speaker) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(speaker.request)
        await response.write(b'data: {"text_output": "At six. Q: no"}\n\n')
        return await asyncio.Event().wait()  # it never ends

    async with asking(tmp_path, endless) as (client, rig, (worker,)):
        status, body = await client.ask(stop=[" Q:"])
        assert (status, texts(body)) == (200, ["At six."])
        await asyncio.wait_for(worker.left.wait(), 30)
        assert rig.in_flight == 0


@pytest.mark.parametrize("streamed", [True, None])
async def test_an_error_before_the_first_token_is_a_status(streamed: bool | None, tmp_path: Path) -> None:
    async with asking(tmp_path, saying(error="out of memory")) as (client, rig, _):
        status, body = await client.ask(stream=streamed)
        assert (status, error_of(body)["message"]) == (500, "out of memory")
        assert rig.metric("balancer_errors_total") == 1


async def test_an_error_after_it_is_an_event(tmp_path: Path) -> None:
    async with asking(tmp_path, saying("At", error="out of memory")) as (client, rig, _):
        status, body = await client.ask()
        assert (status, texts(body), error_of(body)["message"]) == (200, ["At"], "out of memory")
        assert rig.in_flight == 0


async def test_what_a_triton_refuses_is_refused_in_its_words(tmp_path: Path) -> None:
    async with asking(tmp_path, refusing(400, "unexpected input")) as (client, rig, _):
        status, body = await client.ask()
        assert (status, error_of(body)["message"]) == (400, "unexpected input")
        assert rig.in_flight == 0


async def test_what_a_triton_has_not_begun_goes_to_another(tmp_path: Path) -> None:
    drains = refusing(400, "Request for unknown model: 'm' has no available versions")
    async with asking(tmp_path, drains, saying("At")) as (client, _, workers):
        assert texts((await client.ask())[1]) == ["At"]
        assert workers[0].asked == workers[1].asked
    async with asking(tmp_path, drains) as (client, _, _):
        assert (await client.ask())[0] == 503


async def test_where_a_triton_dies_in_mid_stream_an_event_says_so(tmp_path: Path) -> None:
    async with asking(tmp_path, saying("At", end=False), saying("no")) as (client, _, workers):
        status, body = await client.ask()
        assert (status, texts(body)) == (200, ["At"])
        assert error_of(body)["type"] == "server_error"
        assert workers[1].asked == []
        status, body = await client.ask(stream=None)
        assert (status, json.loads(body)["choices"][0]["message"]["content"]) == (200, "no")


@pytest.mark.parametrize("streamed", [True, None])
async def test_another_goes_on_where_it_may(streamed: bool | None, tmp_path: Path) -> None:
    resume = {"resume": True}
    async with asking(tmp_path, saying("At", end=False), saying(" six"), proxy=resume) as (client, rig, workers):
        _, body = await client.ask(stream=streamed)
        said = texts(body) if streamed else [json.loads(body)["choices"][0]["message"]["content"]]
        assert "".join(said) == "At six"
        assert workers[1].asked[0]["text_input"] == "<user>When?<assistant>At"
        assert workers[1].asked[0]["max_tokens"] == 4
        assert rig.metric("balancer_proxy_resumed_total", result="made") == 1


async def test_what_cannot_be_translated_is_refused_before_any_worker(tmp_path: Path) -> None:
    async with asking(tmp_path, saying("no")) as (client, rig, (worker,)):
        status, body = await client.ask(tools=[{"type": "function"}])
        assert status == 400
        assert "tools" in error_of(body)["message"]
        assert worker.asked == []
        assert rig.metric("balancer_refused_total") + rig.metric("balancer_refusals_total") == 1


async def test_a_split_names_the_version(tmp_path: Path) -> None:
    split = {"versions": ["1", "2"], "split": {"old": "1", "new": "2", "share": 1.0}}
    async with asking(tmp_path, saying("At"), **split) as (client, _, (worker,)):
        assert (await client.ask())[0] == 200
        assert worker.paths == ["/v2/models/m/versions/2/generate_stream"]


async def test_a_client_that_leaves_ends_its_request_at_the_worker(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def never(_: Speaker) -> web.StreamResponse:
        begun.set()
        return await asyncio.Event().wait()  # it never does

    async with asking(tmp_path, never) as (client, rig, (worker,)):
        call = asyncio.create_task(client.ask(stream=None))
        await begun.wait()
        call.cancel()
        await asyncio.wait_for(worker.left.wait(), 30)
        await eventually(lambda: rig.in_flight == 0)
