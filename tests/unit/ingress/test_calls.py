"""What a message asks of the listener, and what is made of the listener's answers."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from balancer.ingress import caller as caller_module
from balancer.ingress.caller import Caller
from balancer.ingress.calls import UnservableError, call_of, deadline_s
from balancer.ingress.events import Execution
from balancer.ingress.message import NO_ID, Message, safe_id
from balancer.ingress.outcomes import Answer, Failure

INFINITY = float("inf")


def message(body: object = b"{}", headers: Mapping[str, str] | None = None, id_: str = "a-1") -> Message:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Message(id_, raw, headers or {}, published_s=100.0, position=None)


@pytest.mark.parametrize(
    ("body", "headers", "path", "model"),
    [
        ({"inputs": []}, {"x-model": "digits"}, "/v2/models/digits/infer", "digits"),
        ({"inputs": []}, {"x-model": "a/../b c"}, "/v2/models/a%2F..%2Fb%20c/infer", "a/../b c"),
        ({"inputs": []}, {"x-model": "d", "x-model-version": "3"}, "/v2/models/d/versions/3/infer", "d"),
        ({"text_input": "hi"}, {"x-model": "d", "x-path": "generate"}, "/v2/models/d/generate", "d"),
        ({"inputs": []}, {}, "/v2/models/usual/infer", "usual"),
        ({"model": "m", "messages": []}, {}, "/v1/chat/completions", "m"),
        ({"model": "m", "prompt": "hi"}, {}, "/v1/completions", "m"),
        ({"model": "m", "input": "hi"}, {}, "/v1/embeddings", "m"),
        ({"model": "m", "prompt": "hi"}, {"x-path": "/v1/chat/completions"}, "/v1/chat/completions", "m"),
        (
            b"\x00\x01",
            {"x-model": "digits", "inference-header-content-length": "1"},
            "/v2/models/digits/infer",
            "digits",
        ),
    ],
)
def test_a_message_asks_for_a_model(body: object, headers: Mapping[str, str], path: str, model: str) -> None:
    call = call_of(message(body, headers), model="usual")
    assert (call.path, call.model) == (path, model)


def test_only_known_headers_go_on_and_the_id_is_the_messages() -> None:
    headers = {
        "x-model": "digits",
        "x-tenant": "blue",
        "traceparent": "00-1-2-03",
        "authorization": "Bearer of-somebody",
        "host": "elsewhere",
        "x-request-id": "another",
        "x-endpoint": "10.0.0.1:80",
    }
    sent = call_of(message(headers=headers)).headers
    assert sent == {
        "x-tenant": "blue",
        "traceparent": "00-1-2-03",
        "x-request-id": "a-1",
        "content-type": "application/json",
    }


@pytest.mark.parametrize(
    ("bad", "names"),
    [
        (message(id_=safe_id("a b")), "no blanks"),
        (message({"inputs": []}), "x-model"),
        (message({"model": 3, "messages": []}), "x-model"),
        (message(b"[" * 100_000), "x-model"),
        (message({"model": "x" * 2000, "prompt": ""}), "member model"),
        (message({"model": "a\r\nb: c", "prompt": ""}), "member model"),
        (message(headers={"x-model": "m", "x-path": "/admin"}), "/v1/chat/completions"),
        (message(headers={"x-model": "m", "x-tenant": "a\r\nb: c"}), "x-tenant"),
        (message(headers={"x-model": "m", "x-tenant": "a" * 2000}), "1024"),
    ],
)
def test_what_no_worker_can_serve_says_why(bad: Message, names: str) -> None:
    with pytest.raises(UnservableError, match=names.replace("[", r"\[")):
        call_of(bad)


def test_an_id_that_nobody_can_take_is_replaced_by_a_hash() -> None:
    assert [safe_id(each) for each in ("a", "x" * 256, "a=b/c")] == ["a", "x" * 256, "a=b/c"]
    replaced = [safe_id(each) for each in ("", "x" * 257, "a b", "a\r\nhost: b", "sämtlich", "\ud83d\ude00")]
    assert len(set(replaced)) == len(replaced)
    assert all(each.startswith(NO_ID) and len(each) == 40 for each in replaced)


def test_a_deadline_counts_from_the_publication() -> None:
    assert deadline_s(message(headers={"x-deadline-ms": "1500"})) == 101.5
    assert deadline_s(message()) == INFINITY
    for wrong in ("", "-1", "1.5", "1e3", "٣", "9" * 13):
        with pytest.raises(UnservableError, match="x-deadline-ms"):
            deadline_s(message(headers={"x-deadline-ms": wrong}))


Answering = Callable[[web.Request], Awaitable[web.Response]]


async def called(
    answering: Answering, until_s: float = INFINITY, execution: Execution | None = None
) -> Answer | Failure:
    app = web.Application()
    app.router.add_post("/v2/models/digits/infer", answering)
    async with TestServer(app) as server:
        caller = Caller(str(server.make_url("/")), unix_s=lambda: 100.0)
        await caller.open()
        try:
            one = message(b"asked", {"x-model": "digits"})
            return await caller.call(call_of(one), one, until_s, execution)
        finally:
            await caller.close()


async def test_an_answer_is_returned_as_it_came() -> None:
    seen = {}

    async def answer(request: web.Request) -> web.Response:
        seen.update({name.lower(): value for name, value in request.headers.items()}, body=await request.read())
        headers = {"Inference-Header-Content-Length": "2", "Set-Cookie": "a=b"}
        return web.Response(body=b"said", headers=headers, content_type="application/octet-stream")

    found = await called(answer, until_s=102.0)
    assert found == Answer(
        b"said",
        {"content-type": "application/octet-stream", "inference-header-content-length": "2", "x-status": "200"},
    )
    assert (seen["body"], seen["x-request-id"], seen["x-deadline-ms"]) == (b"asked", "a-1", "2000")


@pytest.mark.parametrize(
    ("status", "body", "final", "begun"),
    [
        (400, "wrong shape", True, 0),
        (413, "too large", True, 0),
        (302, "", True, 0),
        (404, "no such model", False, 1),
        (429, "too many", False, 0),
        (500, "the model failed", False, 3),
        (503, "no worker has room", False, 0),
        (503, "upstream connect error or disconnect/reset before headers. reset reason: lost", False, 1),
        (504, "late", False, 1),
    ],
)
async def test_a_refusal_says_whether_it_is_the_last_word(status: int, body: str, final: bool, begun: int) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body, headers={"Retry-After": "3"})

    found = await called(answer)
    assert isinstance(found, Failure)
    assert (found.final, found.begun, found.after_s) == (final, begun, 3.0)
    assert str(status) in found.reason
    assert body[:100] in found.reason


async def test_who_does_not_answer_may_have_begun_and_who_is_not_there_has_not() -> None:
    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    found = await called(answer)
    assert isinstance(found, Failure)
    assert found.begun
    assert not found.final

    caller = Caller("http://127.0.0.1:1")
    await caller.open()
    one = message(headers={"x-model": "digits"})
    gone = await caller.call(call_of(one), one, INFINITY)
    await caller.close()
    assert isinstance(gone, Failure)
    assert not gone.begun
    assert not gone.final
    assert "127.0.0.1:1" in gone.reason


async def test_an_answer_without_end_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller_module, "MAX_ANSWER_BYTES", 100)

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=b"x" * 101)

    assert await called(answer) == Failure("the answer has more than 100 bytes", final=True)


async def test_nobody_waits_beyond_the_deadline() -> None:
    asked = asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        asked.set()
        await asyncio.Event().wait()
        return web.Response()

    found = await called(answer, until_s=100.2)
    assert asked.is_set()
    assert found == Failure("no answer in time", final=False)
