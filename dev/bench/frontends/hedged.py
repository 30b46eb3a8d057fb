"""The front end `proxy` before a fleet with one slow worker: what second copies of slow requests gain, and cost."""

import asyncio
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from balancer.discovery.workers import WorkerSpec
from balancer.errors import OperatorError
from balancer.stack.stack import REPOSITORY, read_samples, sum_of
from dev.bench.client import Answers, joined, load, write_infer
from dev.bench.frontends.delayed import ANSWER
from dev.bench.frontends.gateways import PROXY, balanced, new_workers
from dev.bench.results import Options, Table
from dev.stack import MODEL

WORKERS = 32
"""One of them slow: it gets 3% of the requests where all get as many, and a second copy goes out after 95% of the
latest."""
FAST_MS, SLOW_MS = 5, 100
POLICIES = ("round_robin", "expected_latency")
IN_FLIGHT = 2
ROUNDS, ROUND_S, WARM_UP_S = 3, 2.0, 1.5
_ANSWER_BYTES = 5 + len(ANSWER)
_MODELS: Mapping[bool, Mapping[str, Any]] = {
    False: {"repeatable": True},
    True: {"repeatable": True, "hedge": True},
}
_DECISIONS, _HEDGES = "balancer_decisions_total", "balancer_proxy_hedges_total"


@dataclass(frozen=True)
class _Found:
    answers: Answers
    copies: float
    won: float

    def quantile_ms(self, share: float) -> float:
        return float(np.quantile(self.answers.latency_s, share)) * 1e3


def measure(options: Options) -> list[Table]:
    with tempfile.TemporaryDirectory(prefix="hedged-") as folder:
        found = asyncio.run(_measure(options, Path(folder)))
    note = (
        f"{WORKERS} workers that answer after {FAST_MS} ms, one of them after {SLOW_MS} ms; {IN_FLIGHT} requests in "
        "flight. Copies: second ones, as a share of the requests, and of those the share that answered first."
    )
    table = Table(
        "Hedging, one slow worker",
        ["", "hedge", "per s", "p50 ms", "p95 ms", "p99 ms", "p99.9 ms", "copies", "first", "not OK"],
        note=note,
    )
    for (policy, hedge), each in found.items():
        copies = [f"{each.copies:.1%}", f"{each.won:.0%}"] if hedge else ["", ""]
        quantiles = (f"{each.quantile_ms(share):,.1f}" for share in (0.5, 0.95, 0.99, 0.999))
        not_ok = each.answers.failed(_ANSWER_BYTES)
        rate = f"{each.answers.rate_per_s:,.0f}"
        table.rows.append([policy, "yes" if hedge else "no", rate, *quantiles, *copies, f"{not_ok}"])
    return [table]


async def _measure(options: Options, folder: Path) -> dict[tuple[str, bool], _Found]:
    workers = new_workers(WORKERS)
    body = folder / "infer"
    write_infer(body, 64)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(_delayed(workers))
        targets: dict[tuple[str, bool], tuple[str, str]] = {}
        for policy, hedge in ((policy, hedge) for policy in POLICIES for hedge in _MODELS):
            models = {"models": {MODEL: {"proxy": _MODELS[hedge]}}}
            name = f"{policy}-hedged" if hedge else policy
            gateway = await balanced(stack, name, PROXY, workers, folder, models, policy)
            assert gateway.stack is not None
            targets[policy, hedge] = gateway.envoy.endpoint, gateway.stack.admin()
        for endpoint, _ in targets.values():
            await load(endpoint, body, options.seconds(WARM_UP_S), IN_FLIGHT)
        before = await _counts(targets)
        answers: dict[tuple[str, bool], list[Answers]] = {key: [] for key in targets}
        for _ in range(options.often(ROUNDS)):
            for key, (endpoint, _) in targets.items():
                answers[key].append(await load(endpoint, body, options.seconds(ROUND_S), IN_FLIGHT))
        after = await _counts(targets)
    return {key: _found(joined(answers[key]), before[key], after[key]) for key in targets}


def _found(answers: Answers, before: Mapping[str, float], after: Mapping[str, float]) -> _Found:
    counted = {name: after[name] - before[name] for name in after}
    copies = counted[_DECISIONS] - answers.count
    return _Found(answers, copies / answers.count, counted["won"] / max(copies, 1.0))


async def _counts(targets: Mapping[tuple[str, bool], tuple[str, str]]) -> dict[tuple[str, bool], dict[str, float]]:
    found = {}
    for key, (_, admin_url) in targets.items():
        samples = await read_samples(admin_url)
        found[key] = {_DECISIONS: sum_of(samples, _DECISIONS), "won": sum_of(samples, _HEDGES, result="won")}
    return found


@contextlib.contextmanager
def _delayed(workers: Sequence[WorkerSpec]) -> Iterator[None]:
    delays = [f"{worker.grpc_port}:{FAST_MS}" for worker in workers[:-1]]
    command = [sys.executable, "-m", "dev.bench.frontends.delayed", *delays, f"{workers[-1].grpc_port}:{SLOW_MS}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY, text=True) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise OperatorError("the workers with delays did not start; see above")
            yield
        finally:
            process.kill()
