"""`balancer up` as a user runs it: all starts together, and all stops together, with the reason."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from support import fronts
from support.waiting import eventually
from tritonclient.utils import InferenceServerException

from balancer.native.state import default_folder
from balancer.stack import llama
from balancer.stack.process import free_ports
from balancer.stack.stack import REPOSITORY

pytestmark = pytest.mark.integration


@dataclass
class Up:
    process: asyncio.subprocess.Process
    port: int
    admin_port: int
    output: Path
    run_dir: Path

    def parts(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    async def ready(self) -> bool:
        assert self.process.returncode is None, self.output.read_text()
        try:
            url = f"http://127.0.0.1:{self.admin_port}/ready"
            async with aiohttp.ClientSession() as session, session.get(url) as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False


@asynccontextmanager
async def up(directory: Path, *arguments: str) -> AsyncIterator[Up]:
    port, admin_port = free_ports(2)
    output = directory / "output"
    options = ["--workers", "1", "--port", str(port), "--admin-port", str(admin_port), *arguments]
    with output.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "balancer", "up", *options, "--run-dir", str(directory / "run")),
            stdout=file,
            stderr=asyncio.subprocess.STDOUT,
        )
    try:
        yield Up(process, port, admin_port, output, directory / "run")
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def printed(running: Up) -> str:
    return " ".join(running.output.read_text().split())


def alive(parts: list[psutil.Process]) -> list[psutil.Process]:
    return [part for part in parts if part.is_running() and part.status() != psutil.STATUS_ZOMBIE]


async def test_ready_means_that_requests_are_served_as_by_one_triton_and_ctrl_c_stops_all(tmp_path: Path) -> None:
    (nats_port,) = free_ports(1)
    async with up(tmp_path, "--policy", "wlpr", "--ingress-port", str(nats_port)) as running:
        await eventually(running.ready, "ready")
        await eventually(lambda: "policy: wlpr, decided by: Envoy (native)" in printed(running), "it says what runs")
        shared = default_folder(str((tmp_path / "run").resolve()))
        assert shared.exists()
        url = f"http://127.0.0.1:{running.port}/v2"
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{url}/models/digits/ready") as response:
                assert response.status == 200
            async with session.get(url) as response:
                assert (await response.json())["name"] == "triton"
        await a_second_one_is_refused(tmp_path / "run")
        await eventually(partial(the_page_of_topics_holds, nats_port), "its topics are served", until=bool)
        parts = running.parts()
        assert {"envoy", "tritonserver", "nats-server"} <= {part.name() for part in parts}
        running.process.send_signal(signal.SIGINT)
        assert await running.process.wait() == 0
    assert not alive(parts)
    assert not shared.exists()


async def the_page_of_topics_holds(port: int) -> bool:
    """Whether its example says what it should; not before the ingress has made the topics."""
    example = (REPOSITORY / "docs/ingress.md").read_text().partition("```python\n")[2].partition("```")[0]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        example.replace("4222", str(port)),
        stdout=asyncio.subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    output, _ = await process.communicate()
    return output.startswith(b"image-1 [{") and b"LABEL" in output


async def a_second_one_is_refused(run_dir: Path) -> None:
    command = [sys.executable, "-m", "balancer", "up", "--run-dir", str(run_dir)]
    second = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await second.communicate()
    assert second.returncode == 1
    assert "belongs to a running balancer up" in output.decode()


async def test_the_end_of_a_part_stops_all_and_says_which_and_why(tmp_path: Path) -> None:
    async with up(tmp_path) as running:
        await eventually(running.ready, "ready")
        parts = running.parts()
        next(part for part in parts if part.name() == "tritonserver").kill()
        assert await running.process.wait() == 1
    assert not alive(parts)
    output = running.output.read_text()
    assert "worker-0 was killed by SIGKILL, so all is stopped" in output
    assert "Traceback" not in output


async def test_language_models_are_served_without_a_triton(tmp_path: Path) -> None:
    async with up(tmp_path, "--workers", "0", "--llm", "1") as running:
        await eventually(running.ready, patience_s=60)
        asked = {"model": llama.MODEL, "prompt": "The tide", "max_tokens": 3}
        url = f"http://127.0.0.1:{running.port}/v1/completions"
        async with aiohttp.ClientSession() as session, session.post(url, json=asked) as response:
            assert (await response.json())["usage"]["completion_tokens"] == 3


async def test_a_taken_port_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        async with up(tmp_path, "--port", port) as running:
            assert await running.process.wait() == 1
    assert f"--port {port} cannot be used" in running.output.read_text()


MODELS = Path(__file__).resolve().parents[3] / "triton" / "feature_models"
MODEL = "several_outputs"


def words(call: Any) -> str:
    """What a call of Triton's client fails with; empty: it does not."""
    try:
        call()
    except InferenceServerException as error:
        return f"{error.status()} {error.message()}"
    return ""


def controlled(of: Any, url: str) -> list[Any]:
    """What Triton's examples `simple_grpc_model_control` and `simple_http_model_control` do and look at, and inferences
    at once after a change."""
    inputs = [of.InferInput(name, [1, 4], "INT32") for name in ("A", "B")]
    for each in inputs:
        each.set_data_from_numpy(np.ones((1, 4), np.int32))
    with of.InferenceServerClient(url) as client:
        index = client.get_model_repository_index(**({"as_json": True} if of is triton_grpc else {}))
        found: list[Any] = [len(index["models"] if of is triton_grpc else index)]
        # Of a model that is not loaded the fleet says UNAVAILABLE once it has heard of that, and one Triton NOT_FOUND.
        found += [client.is_model_ready(MODEL), bool(words(partial(client.infer, MODEL, inputs)))]
        client.load_model(MODEL)
        found += [client.is_model_ready(MODEL), client.infer(MODEL, inputs).as_numpy("SUM").tolist()]
        found.append(
            words(partial(client.load_model, MODEL, config='"parameters": {"config": {{"max_batch_size": "16"}}}'))
        )
        config = client.get_model_config(MODEL, **({"as_json": True} if of is triton_grpc else {}))
        whole = (config["config"] if of is triton_grpc else config) | {"max_batch_size": "16"}
        client.load_model(MODEL, config=json.dumps(whole))
        config = client.get_model_config(MODEL, **({"as_json": True} if of is triton_grpc else {}))
        found.append((config["config"] if of is triton_grpc else config)["max_batch_size"])
        found.append(client.infer(MODEL, inputs).as_numpy("SUM").tolist())
        client.unload_model(MODEL)
        found += [client.is_model_ready(MODEL), bool(words(partial(client.infer, MODEL, inputs)))]
        found.append(words(partial(client.load_model, "wrong_model_name")))
    return found


@pytest.mark.parametrize("of", [triton_grpc, pytest.param(triton_http, marks=pytest.mark.long)])
@pytest.mark.parametrize("front", fronts.one_of("native", "pick", "proxy"))
async def test_models_are_loaded_and_unloaded_as_at_one_triton(tmp_path: Path, front: str, of: Any) -> None:
    """One round for each stack: a Triton that has just unloaded a model may let go of it again after the next load."""
    (tmp_path / "own.yaml").write_text(f"envoy: {{frontend: {front}}}\n")
    explicit = ("--model-control-mode", "explicit", "--load-model", "identity", "--models", str(MODELS))
    async with up(tmp_path, *explicit, "--config", str(tmp_path / "own.yaml"), "--workers", "2") as running:
        await eventually(running.ready, "ready")
        await eventually(lambda: "Ctrl-C" in printed(running), "it says so")
        url = f"http://127.0.0.1:{running.port}/v2/models/identity/ready"

        async def there() -> bool:
            async with aiohttp.ClientSession() as session, session.get(url) as response:
                return response.status == 200

        await eventually(there, "what was to be loaded at the start is")
        found = await asyncio.to_thread(controlled, of, f"127.0.0.1:{running.port}")
    models, *before = found[:3]
    assert (models, before) == (len(list(MODELS.iterdir())), [False, True])
    assert found[3:5] == [True, [[2, 2, 2, 2]]]
    assert found[5], "an invalid configuration is refused"
    assert (int(found[6]), found[7]) == (16, [[2, 2, 2, 2]])
    assert found[8:10] == [False, True]
    assert "failed to load 'wrong_model_name'" in found[10]


async def test_models_are_not_for_anybody_in_the_network(tmp_path: Path) -> None:
    async with up(tmp_path, "--model-control-mode", "explicit", "--host", "0.0.0.0") as running:
        assert await running.process.wait() == 1
    assert "name who may in fleet.control.callers" in printed(running)
