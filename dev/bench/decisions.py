"""How long a decision takes as production runs it: by the compiled kernel, by Python without it, and within Envoy."""

import subprocess
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from balancer.kernel.compiled.c_compiler import compiler
from balancer.kernel.compiled.library import PATH, Compiled, Library
from balancer.kernel.estimators.prefixes import next_checkpoint
from balancer.kernel.python_kernel import Kernel
from balancer.kernel.settings import Settings
from balancer.native.build import WITHOUT_HOOKS
from balancer.native.envoy_module import Module
from balancer.native.header import SOURCES
from balancer.native.router import SharedRouter
from balancer.native.state import Folder
from balancer.scheduler.events import Finished, ModelReport, Report, WorkerAdded, WorkersAdded
from balancer.scheduler.router import Router
from dev.bench.results import Options, Table
from policies import BUILTIN
from policies.base import Policy, Prefix, Request
from policies.hashing import mix

MODELS = ("model_0", "model_1", "model_2")
PROMPT_TOKENS = 25_000.0
"""Of 100 kB of text."""
_BLOCK_TOKENS, _PROMPTS = 32, 200
_IN_FLIGHT_PER_WORKER = 3
_MOST_IN_PYTHON = 64
"""Workers: Python takes minutes to be told of a thousand."""
_REQUEST_EVERY_S = 0.001
WORKER_COUNTS = (8, 64, 256, 1000)
_INSIDE_COUNTS = (16, 64)
_INSIDE = ("decide_p50_us", "decide_p99_us", "end_p50_us", "end_p99_us")
Row = dict[str, Any]


def _add_fleet(router: Router | SharedRouter, workers: int, now_s: float) -> None:
    """A busy fleet: workers of three weights, all of which have reported three models."""
    rng = np.random.default_rng(workers)
    weights = rng.choice([1.0, 2.0, 4.0], size=workers).tolist()
    added = (WorkerAdded(f"worker-{number}", weight=weight) for number, weight in enumerate(weights))
    router.observe(WorkersAdded(tuple(added)), now_s)
    for number in range(workers):
        router.observe(_report(number, rng), now_s)


def _report(worker: int, rng: np.random.Generator) -> Report:
    models = tuple(
        ModelReport(
            model=model,
            version="1",
            ready=True,
            pending=float(rng.integers(0, 8)),
            executing=1.0,
            max_batch_rows=8,
            batches=((1, 50, 50 * 0.004 * float(rng.uniform(0.5, 2))), (4, 50, 50 * 0.009)),
        )
        for model in MODELS
    )
    return Report(worker=f"worker-{worker}", incarnation=1, number=1, ready=True, models=models, balancers=2)


def _prefix(text: int) -> Prefix:
    """What a long prompt begins with."""
    blocks, ends = int(PROMPT_TOKENS) // _BLOCK_TOKENS, [1]
    while (end := next_checkpoint(ends[-1])) < blocks:
        ends.append(end)
    return tuple((mix(end ^ mix(text)), float(end * _BLOCK_TOKENS)) for end in (*ends, blocks))


def _whole(policy: Policy, workers: int, decisions: int, kernel: Kernel, *, prompts: bool = False) -> Row:
    """Time `Router.route` and the taking in of one outcome, with three requests in flight at each worker.

    Estimators and accounting are in it; reading the request and writing the answer are not. It is CPU time, so that
    what else the machine does is no part of it. `prompts`: each request has one of a few long ones.
    """
    prefixes = [_prefix(text) for text in range(_PROMPTS)] if prompts else [()]
    router = Router(policy, kernel=kernel)
    _add_fleet(router, workers, 0.0)
    # Reports come all the time in production; here time stands nearly still instead, so that none gets stale.
    step_s = min(_REQUEST_EVERY_S, router.settings.stale_after_s / (4 * decisions))
    now_s = 0.0
    under_way = deque(
        router.route(Request(model=MODELS[number % 3]), now_s) for number in range(_IN_FLIGHT_PER_WORKER * workers)
    )
    taken_ns = np.empty(decisions)
    for number in range(-decisions // 10, decisions):  # what comes before 0 warms up
        tokens, prefix = PROMPT_TOKENS if prompts else 0.0, prefixes[number % len(prefixes)]
        request = Request(model=MODELS[number % 3], rows=1 + number % 4, prompt_tokens=tokens, prefix=prefix)
        now_s += step_s
        begun_ns = time.thread_time_ns()
        decision = router.route(request, now_s)
        ended = under_way.popleft()
        router.observe(Finished(ended.number, ended.worker, 0.005, True), now_s)
        if number >= 0:
            taken_ns[number] = time.thread_time_ns() - begun_ns
        under_way.append(decision)
    if router.failures:
        raise RuntimeError(f"policy {policy.name} failed: {router.last_failure}")
    p50_us, p99_us = np.percentile(taken_ns, [50, 99]) / 1000.0
    return {"policy": policy.name, "workers": workers, "p50_us": float(p50_us), "p99_us": float(p99_us)}


def measure(options: Options) -> list[Table]:
    decisions, library = 300 if options.quick else 2000, Library()
    cases = [(policy(), workers) for policy in BUILTIN.values() for workers in WORKER_COUNTS]
    compiled = [_whole(policy, workers, decisions, Compiled(library)) for policy, workers in cases]
    long = [_whole(policy, workers, decisions, Compiled(library), prompts=True) for policy, workers in cases]
    few = [(policy, workers) for policy, workers in cases if workers <= _MOST_IN_PYTHON]
    plain = [_whole(policy, workers, decisions // 4, Kernel()) for policy, workers in few]
    return [
        _table("The whole decision: eligibility, estimators, policy, draw, fallbacks, and its outcome, µs", compiled),
        _table("The same where no compiled kernel is there, in Python", plain),
        _table("The whole decision for prompts of 100 kB, µs", long),
    ]


def inside(options: Options) -> list[Table]:
    """Every policy within Envoy: its module's own code over shared state, without Envoy around it."""
    library, requests = Library(), 500 if options.quick else 4000
    with tempfile.TemporaryDirectory(prefix="native-") as name:
        folder = Path(name)
        program = folder / "inside"
        sources = [Path(__file__).with_name("inside.c"), *WITHOUT_HOOKS]
        strict = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-I", PATH.parent, "-I", SOURCES)
        subprocess.run([*compiler(), *strict, "-o", program, *sources, "-pthread", "-lm", "-ldl"], check=True)
        rows = [
            _inside(program, library, policy(), workers, requests, folder / f"{policy.name}-{workers}")
            for policy in BUILTIN.values()
            for workers in _INSIDE_COUNTS
        ]
    title = "A decision inside Envoy: lock, eligibility, policy, counting in, endpoints; and its end; µs"
    return [_table(title, rows, ("decide_", "end_"))]


def _inside(program: Path, library: Library, policy: Policy, workers: int, requests: int, path: Path) -> Row:
    folder = Folder(path)
    router = SharedRouter(policy, Settings(), 1, library, Module(library), folder)
    _add_fleet(router, workers, time.monotonic())
    grpc, http = ({f"worker-{k}": f"10.0.0.{k}:{port}" for k in range(workers)} for port in (8001, 8000))
    router.list_endpoints({"grpc": grpc, "http": http})
    router.serve(True)
    in_flight = _IN_FLIGHT_PER_WORKER * workers
    command: list[str | Path] = [program, PATH, path, str(requests), str(in_flight), *MODELS]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    folder.close()
    found = {field: int(nanoseconds) / 1000 for field, nanoseconds in zip(_INSIDE, printed, strict=True)}
    return {"policy": policy.name, "workers": workers, **found}


def _table(title: str, rows: list[Row], parts: tuple[str, ...] = ("",)) -> Table:
    """A line for each policy; of each size of fleet and part, the median and in brackets the 99th percentile."""
    counts = sorted({row["workers"] for row in rows})
    names = [f"{part.removesuffix('_')}, " if part else "" for part in parts]
    table = Table(title, ["policy", *(f"{name}{workers:,} workers" for workers in counts for name in names)])
    for policy in dict.fromkeys(row["policy"] for row in rows):
        of_policy = [row for row in rows if row["policy"] == policy]
        cells = [f"{row[f'{part}p50_us']:.1f} ({row[f'{part}p99_us']:.1f})" for row in of_policy for part in parts]
        table.rows.append([policy, *cells])
    return table
