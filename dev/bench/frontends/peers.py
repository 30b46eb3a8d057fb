"""SGLang's routers and Ray Serve beside Envoy alone, `pick` and `native`; installed aside, and only when asked for.

One client for all, over HTTP/1.1 and JSON. The upstreams are one program in C (http.c), which Envoy reaches by
`/v2/models/M/infer` and SGLang's router by `/generate`; the bodies are of one length. Ray Serve has no upstreams: in it
the workers are its replicas, as many, which answer the same at once. That favours it: forwarding to the upstreams would
be another hop. Prompts go to the same upstreams by OpenAI's API, and the routers choose by their own rule for these.
"""

import asyncio
import contextlib
import json
import tempfile
from pathlib import Path

from balancer.extproc.names import CHAT
from balancer.stack.process import free_ports
from dev.bench.frontends.gateways import PICK, UPSTREAMS, gateways, new_workers, upstream
from dev.bench.frontends.rounds import Found, Load, Target, in_turn, table
from dev.bench.results import Options, Table
from dev.peers import RAY, ROUTERS, SGLANG, Peer, installed, new_router, running
from dev.stack import MODEL, POLICY

ROUNDS, ROUND_S = 11, 1.0
_ONE, _FULL = "HTTP/1.1, one client", "HTTP/1.1, saturated (16 in flight)"
_LOADS = {_ONE: Load(1, 1), _FULL: Load(16, 1)}
_ANSWER_BYTES = len('{"text":"ok"}')
_EVENT = 'data: {"choices":[{"index":0,"delta":{"content":"tide"}}]}\n\n'
_STREAM_BYTES = 200 * len(_EVENT) + len("data: [DONE]\n\n")
_MODEL = "unknown"
"""As smg calls one whose server tells no name; all others take any."""
_PROMPTS = {
    "prompts of 1 kB": (1_000, False),
    "prompts of 100 kB": (100_000, False),
    "prompts of 1 kB, answers of 200 events": (1_000, True),
}


def measure(options: Options) -> list[Table]:
    python = installed()
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        found = asyncio.run(_measure(options, python, Path(folder)))
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        prompts = asyncio.run(_measure_prompts(options, python, Path(folder)))
    note = (
        f"rounds: {options.often(ROUNDS)}. "
        "Ratios: the median of those within each round, and their range. Envoy, Python, peer: CPU a request, in µs."
    )
    ours, theirs = f"{UPSTREAMS} upstreams in C; {POLICY}", "replicas with Ray Serve"
    tables = [table(title, of_load, f"{ours}; {theirs}; {note}") for title, of_load in found.items()]
    return tables + [
        table(title, of_load, f"{ours}; theirs: cache_aware; {note}") for title, of_load in prompts.items()
    ]


async def _measure(options: Options, python: Path, folder: Path) -> dict[str, Found]:
    workers = new_workers()
    tensor, text = _bodies(folder)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(upstream("http.c", [worker.http_port for worker in workers], folder))
        envoys = await stack.enter_async_context(gateways(workers, folder))
        # The nearest that it has to least-request.
        sglang = await stack.enter_async_context(running(new_router(SGLANG, "power_of_two", python, workers, folder)))
        ray = await stack.enter_async_context(running(_ray(python, folder)))
        targets = {
            name: _target(gateway.envoy.endpoint, tensor, gateway.processes, f"/v2/models/{MODEL}/infer")
            for name, gateway in envoys.items()
        }
        targets[SGLANG] = _target(sglang.endpoint, text, {"peer": [sglang.process.pid]}, "/generate")
        targets[RAY] = _target(ray.endpoint, tensor, {"peer": [ray.process.pid]}, "/")
        return {
            title: await in_turn(targets, pushed, options.often(ROUNDS), options.seconds(ROUND_S))
            for title, pushed in _LOADS.items()
        }


async def _measure_prompts(options: Options, python: Path, folder: Path) -> dict[str, Found]:
    workers = new_workers(protocol="openai")
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(upstream("http.c", [worker.http_port for worker in workers], folder))
        envoys = await stack.enter_async_context(gateways(workers, folder))
        routers = {
            name: await stack.enter_async_context(running(new_router(name, "cache_aware", python, workers, folder)))
            for name in ROUTERS
        }
        found = {}
        for title, (size_bytes, streams) in _PROMPTS.items():
            body = folder / "prompt.json"
            said = [{"role": "user", "content": "tide " * (size_bytes // 5)}]
            body.write_text(json.dumps({"model": _MODEL, "messages": said, "stream": streams}))
            answer_bytes = _STREAM_BYTES if streams else _ANSWER_BYTES
            # These make chunks of streams, on which h2load 1.52 hangs.
            without = (PICK, *routers) if streams else ()
            targets = {
                name: Target(gateway.envoy.endpoint, body, answer_bytes, gateway.processes, CHAT, http1=True)
                for name, gateway in envoys.items()
                if name not in without
            }
            for name, router in routers.items():
                if name in without:
                    continue
                processes = {"peer": [router.process.pid]}
                targets[name] = Target(router.endpoint, body, answer_bytes, processes, CHAT, http1=True)
            found[f"OpenAI's API, {title}, 16 in flight"] = await in_turn(
                targets, _LOADS[_FULL], options.often(ROUNDS), options.seconds(ROUND_S)
            )
        return found


def _target(endpoint: str, body: Path, processes: dict[str, list[int]], path: str) -> Target:
    return Target(endpoint, body, _ANSWER_BYTES, processes, path, http1=True)


def _bodies(folder: Path) -> tuple[Path, Path]:
    tensor = json.dumps({"inputs": [{"name": "INPUT", "shape": [1, 16], "datatype": "FP32", "data": [0.5] * 16}]})
    text = json.dumps({"text": "x" * (len(tensor) - len(json.dumps({"text": ""})))})
    paths = folder / "tensor.json", folder / "text.json"
    for path, body in zip(paths, (tensor, text), strict=True):
        path.write_text(body)
    return paths


def _ray(python: Path, folder: Path) -> Peer:
    (port,) = free_ports(1)
    script = Path(__file__).with_name("replicas.py")
    command: list[str | Path] = [python, script, str(port), str(UPSTREAMS), folder / "ray"]
    return Peer(name=RAY, command=command, port=port, ready_path="/", log_path=folder / "ray.log")
