"""The emulated server: `python -m dev.emulated_llm.server --scenario chat --device A100 --port 8000`.

Its prompt is what messages say, one after the other; so many bytes of it make a token. It answers with as many tokens
as are asked for, each at the end of the step that would have made it.
"""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
import uvloop
from aiohttp import web

from dev.emulated_llm.batch import Batch
from simulator.scenario.scenario import load_scenario
from simulator.spec import ModelSpec

TOKEN_BYTES = 4
_DEFAULT_TOKENS = 16
"""To generate, where the client names none."""
_MOST_BYTES = 2**24
_WORD = " tide"


@dataclass(eq=False)
class _Request:
    tokens: int
    output: int
    blocks: Sequence[int]
    level: int = 0
    generated: int = 0
    cached: float = math.nan
    ended: bool = False
    told: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever a token was generated."""


class _Queue:
    def __init__(self) -> None:
        self.levels: list[list[_Request]] = [[]]

    def __len__(self) -> int:
        return len(self.levels[0])

    def remove(self, request: _Request) -> None:
        self.levels[0] = [each for each in self.levels[0] if each is not request]


class EmulatedServer:
    def __init__(self, model: ModelSpec, device: str, block_tokens: int) -> None:
        """Raises ValueError where the model does not generate on that device."""
        service = model.service_on(device)
        limits = model.generation.on(device) if model.generation is not None else None
        if model.generation is None or service is None or limits is None:
            raise ValueError(f"model {model.name!r} does not generate on {device!r}: name a device of the scenario")
        self._name, self._block_tokens = model.name, block_tokens
        self._memory_tokens = limits.memory_tokens
        self._step_s = service.table(model.table_sizes)[0]
        self._batch = Batch[_Request](model.generation, limits, block_tokens)
        self._queue, self._asked = _Queue(), asyncio.Event()
        self._succeeded = self._computed = 0

    def app(self) -> web.Application:
        app = web.Application(client_max_size=_MOST_BYTES)
        app.cleanup_ctx.append(self._stepping)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/v1/completions", self._complete)
        return app

    async def _stepping(self, _: web.Application) -> AsyncIterator[None]:
        steps = asyncio.create_task(self._steps())
        yield
        steps.cancel()

    async def _steps(self) -> None:
        clock, batch = asyncio.get_running_loop().time, self._batch
        now_s = clock()
        while True:
            if not batch.running and not len(self._queue):
                self._asked.clear()
                await self._asked.wait()
                now_s = clock()
            tokens, attention_s = batch.begin(self._queue, now_s)
            # From where the last one should have ended: what this process is late does not add up.
            now_s += float(self._step_s[tokens]) + attention_s
            await asyncio.sleep(now_s - clock())
            for sequence, _ in batch.end():
                sequence.request.told.set()

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self._name, "object": "model", "created": 0}]})

    async def _metrics(self, _: web.Request) -> web.Response:
        """By vLLM's names."""
        label = f'{{model_name="{self._name}"}}'
        values = {
            "num_requests_running": len(self._batch.running),
            "num_requests_waiting": len(self._queue),
            "request_success_total": self._succeeded,
            "prompt_tokens_total": self._computed,
            "kv_cache_usage_perc": self._batch.held / self._memory_tokens,
        }
        lines = [f"vllm:{name}{label} {float(value)}" for name, value in values.items()]
        blocks = f'block_size="{self._block_tokens}",num_gpu_blocks="{self._memory_tokens // self._block_tokens}"'
        return web.Response(text="\n".join([*lines, f"vllm:cache_config_info{{{blocks}}} 1.0", ""]))

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        try:
            asked = await request.json()
            new = self._request(_prompt(asked), _most_tokens(asked))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return web.json_response({"error": {"message": str(error), "type": "invalid_request_error"}}, status=400)
        self._queue.levels[0].append(new)
        self._asked.set()
        try:
            return await (self._stream(request, new, asked) if asked.get("stream") else self._whole(request, new))
        finally:
            new.ended = True
            self._queue.remove(new)

    def _request(self, prompt: bytes, output: int) -> _Request:
        tokens = max(1, -(-len(prompt) // TOKEN_BYTES))
        if tokens + output > self._memory_tokens:
            raise ValueError(f"{tokens} tokens and {output} to generate: at most {self._memory_tokens} fit together")
        blocks: list[int] = []
        block_bytes = self._block_tokens * TOKEN_BYTES
        for end in range(block_bytes, len(prompt) + 1, block_bytes):
            blocks.append(hash((blocks[-1] if blocks else 0, prompt[end - block_bytes : end])))
        return _Request(tokens, output, blocks)

    async def _tokens(self, of: _Request) -> AsyncIterator[int]:
        """How many more were generated, until all are."""
        given = 0
        while given < of.output:
            await of.told.wait()
            of.told.clear()
            if of.generated > given:
                yield of.generated - given
                given = of.generated
        self._succeeded += 1
        self._computed += of.tokens

    async def _whole(self, request: web.Request, of: _Request) -> web.Response:
        async for _ in self._tokens(of):
            pass
        text = _WORD * of.output
        said: dict[str, Any] = {"text": text}
        kind = "text_completion"
        if _is_chat(request):
            said, kind = {"message": {"role": "assistant", "content": text}}, "chat.completion"
        choice = {"index": 0, **said, "finish_reason": "length"}
        return web.json_response(self._object(kind) | {"choices": [choice], "usage": _usage(of)})

    async def _stream(self, request: web.Request, of: _Request, asked: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        chat = _is_chat(request)
        made = self._object("chat.completion.chunk" if chat else "text_completion")
        said: dict[str, Any] = {"text": _WORD}
        end: dict[str, Any] = {"text": ""}
        if chat:
            said, end = {"delta": {"content": _WORD}}, {"delta": {}}
        event = _event(made | {"choices": [{"index": 0, **said, "finish_reason": None}]})
        async for tokens in self._tokens(of):
            await response.write(event * tokens)
        rest = _event(made | {"choices": [{"index": 0, **end, "finish_reason": "length"}]})
        if (asked.get("stream_options") or {}).get("include_usage"):
            rest += _event(made | {"choices": [], "usage": _usage(of)})
        await response.write(rest + b"data: [DONE]\n\n")
        return response

    def _object(self, kind: str) -> dict[str, Any]:
        return {"id": "emulated", "object": kind, "created": 0, "model": self._name}


def _is_chat(request: web.Request) -> bool:
    return "chat" in request.path


def _prompt(asked: dict[str, Any]) -> bytes:
    said = [asked["prompt"]] if "prompt" in asked else [message["content"] for message in asked["messages"]]
    return "".join(said).encode()


def _most_tokens(asked: dict[str, Any]) -> int:
    return int(asked.get("max_completion_tokens") or asked.get("max_tokens") or _DEFAULT_TOKENS)


def _usage(of: _Request) -> dict[str, Any]:
    return {
        "prompt_tokens": of.tokens,
        "completion_tokens": of.output,
        "total_tokens": of.tokens + of.output,
        "prompt_tokens_details": {"cached_tokens": int(of.cached)},
    }


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


@click.command()
@click.option("--scenario", required=True, help="Its first model is served.")
@click.option("--device", required=True, help="Of the scenario's.")
@click.option("--port", type=int, required=True)
@click.option("--block-tokens", type=int, default=16, show_default=True, help="Of a block that is cached; vLLM's.")
def main(scenario: str, device: str, port: int, block_tokens: int) -> None:
    """Serve a scenario's language model as that device would."""

    async def serve() -> None:
        server = EmulatedServer(load_scenario(scenario).fleet.models[0], device, block_tokens)
        # Of a client that leaves the handler is cancelled, as vLLM aborts its request.
        runner = web.AppRunner(server.app(), access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()

    uvloop.run(serve())


if __name__ == "__main__":
    main()
