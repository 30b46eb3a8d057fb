"""Requests for the program `settle`, and what a router in this process makes of them."""

import dataclasses
import math
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from balancer.discovery.workers import PortName
from balancer.extproc.prompts import NO_SEED, TokenShares, prefix_of, seed_of
from balancer.kernel.compiled.library import Library
from balancer.kernel.settings import (
    EstimatorSettings,
    GuardSettings,
    Limits,
    RolloutSettings,
    Settings,
    ZoneSettings,
)
from balancer.native.envoy_module import Module
from balancer.native.router import SharedRouter
from balancer.native.state import Folder
from balancer.scheduler.canary.selector import CanaryPlan, PolicySelector
from balancer.scheduler.errors import NoEligibleWorker, RoutingError, Shed, UnknownModel
from balancer.scheduler.events import Finished, FirstToken, ModelReport, Report, WorkerAdded
from balancer.scheduler.router import Router
from policies import BUILTIN
from policies.base import Policy, Request

WORKERS, REQUESTS, SEED = 21, 400, 5
MODELS = ("a", "b", "c")
_SILENT_S, _NEWCOMER = 0.8, 4
CODES = {UnknownModel: (404, 5), NoEligibleWorker: (503, 14), Shed: (429, 8)}
LEAST_REQUEST, TAKEN, TURNED_AWAY = 1, 2, 3
SETTINGS = {
    "as they come": Settings(),
    "limits": Settings(
        limits=Limits(max_pending_per_worker=6, sheddable_priority=2, sheddable_max_pending_per_worker=4)
    ),
    "late": Settings(limits=Limits(shed_late=True)),
    "sticky": Settings(sticky_keys=True, max_fallbacks=5),
    "keys that the policy places": Settings(sticky_keys=False, estimators=EstimatorSettings(key_memory=20.0)),
    "zones": Settings(zones=ZoneSettings("a", 0.005), slow_start_s=5.0),
    "zones in order": Settings(zones=ZoneSettings("b", 0.002, ("a", "b", "c")), sticky_keys=True),
}


def crossed(names: Iterable[str], first: str, first_how: str) -> pytest.MarkDecorator:
    """Each of `names` with one way to be set, and one of them with each, in every run; all with all in the long one."""
    pairs = [(how, name) for how in SETTINGS for name in sorted(names)]
    each = [pytest.param(*pair, marks=() if first in pair or first_how in pair else pytest.mark.long) for pair in pairs]
    return pytest.mark.parametrize(("how", "name"), each)


def busy_report(worker: int, k: int, *, executing: float = 0.0, everywhere: bool = True) -> Report:
    """The report numbered `k` of worker `w{worker}`; `everywhere`: whether each has all models ready."""
    models = tuple(
        ModelReport(
            model,
            "1",
            ready=everywhere or model != "c" or worker % 2 == 0,
            pending=float((worker + k) % 5),
            executing=executing,
            succeeded=30 * k,
            max_batch_rows=4,
            instances=1 + worker % 2,
            batches=((1, 20 * k, 0.02 * k * (1 + worker % 7)), (4, 5 * k, 0.03 * k)),
        )
        for model in MODELS
    )
    return Report(f"w{worker}", 1, k, True, models=models, balancers=1 + worker % 3)


def begin(router: Router, now_s: float) -> None:
    """A fleet that has reported: some a while ago, so that they get stale during the requests, one only once."""
    for number in range(WORKERS):
        worker = WorkerAdded(f"w{number}", weight=1.0 + number % 3, zone="abcd"[number % 4])
        router.observe(worker, now_s - _SILENT_S)
    for silent in (True, False):
        for k in range(1, 4):
            for number in range(WORKERS):
                if silent == (number % 7 == 6) and (number != _NEWCOMER or k == 1):
                    report = busy_report(number, k, executing=0.5 * (number % 3), everywhere=False)
                    router.observe(report, now_s + 0.01 * k - _SILENT_S * silent)
    router.tick(now_s + 0.05)


def endpoints_of(names: Iterable[str]) -> dict[PortName, dict[str, str]]:
    """Of workers that are Tritons."""
    listed = list(names)
    return {
        "grpc": {name: endpoint(name, True) for name in listed},
        "http": {name: endpoint(name, False) for name in listed},
    }


def endpoint(worker: str, grpc: bool) -> str:
    return f"10.0.0.{worker[1:]}:{8001 if grpc else 8000}"


def a_shared(path: Path, policy: Policy, settings: Settings) -> SharedRouter:
    """That shares a folder, and has told of where its workers are."""
    library = Library()
    shared = SharedRouter(policy, settings, SEED, library, Module(library), Folder(path))
    names = [f"w{number}" for number in range(WORKERS)]
    shared.list_endpoints(endpoints_of(names))
    return shared


def leave(path: Path, settings: Settings, rollout: RolloutSettings) -> None:
    """A folder as a balancer leaves it that has a guard and a rollout."""
    router = a_shared(path, BUILTIN["wlpr"](), settings)
    begin(router, time.monotonic())
    plan = CanaryPlan(GuardSettings(), BUILTIN["least_requests"](), None, 0.0, rollout, BUILTIN["random"]())
    selector = PolicySelector(router.policy, plan)
    selector.choose(0, time.monotonic())
    router.configure(router.policy, settings, selector)
    router.record_decisions(1.0)
    router.serve(True)


def printed_by(program: Sequence[object], lines: Sequence[str]) -> list[str]:
    """What `settle` says to these lines."""
    command = [str(word) for word in program]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def request_of(number: int) -> tuple[Request, bool]:
    """And whether it speaks gRPC."""
    keyed = number % 3 == 0
    model = MODELS[number % 3] if number % 17 else "nobody"
    version = ("", "1", "7")[2 if number % 19 == 0 else number % 2]
    request = Request(
        model,
        version,
        rows=1.0 + number % 5,
        key=(number % 40) * 0x9E3779B97F4A7C15 % 2**64 if keyed else None,
        deadline_s=0.001 * (1 + number % 50) if number % 5 == 0 else math.inf,
        priority=number % 4,
        sequence=keyed and number % 2 == 0,
    )
    return request, number % 4 != 0


def prompt_of(number: int) -> tuple[str, int]:
    """A word that is said again and again, and up to how many bytes; a dash: there is no prompt."""
    return ("-", 0) if number % 3 == 2 else (f"{'abcd'[number % 4]}tide", 100 + 977 * (number % 23))


def with_prompt(request: Request, prompt: tuple[str, int]) -> Request:
    word, size_bytes = prompt
    if word == "-":
        return request
    text = (word * (size_bytes // len(word) + 1)).encode()[:size_bytes]
    tokens = max(size_bytes * TokenShares().of(request.model), 1.0)
    prefix = prefix_of(text, tokens, seed_of(request.model, "", NO_SEED))
    return dataclasses.replace(request, prompt_tokens=tokens, prefix=prefix)


def line_of(request: Request, grpc: bool, at_ns: int, prompt: tuple[str, int] = ("-", 0)) -> str:
    numbers = (at_ns, 0, int(grpc), int(request.sequence), int(request.key is not None), request.key or 0)
    words = (float(request.deadline_s), float(request.priority), float(request.rows))
    return " ".join(map(str, ("ask", *numbers, *words, request.model or "-", request.version or "-", *prompt)))


def expected(own: Router, request: Request, grpc: bool, now_s: float) -> tuple[str, str]:
    """What the program is to write, and who serves."""
    number = own.next_number
    try:
        decision = own.route(request, now_s)
    except RoutingError as error:
        http, status = CODES[type(error)]
        return f"{TURNED_AWAY} {number} {http} {status} 0x0p+0 {error}", ""
    names = ",".join(endpoint(name, grpc) for name in (decision.worker, *decision.fallbacks))
    # In C the first digit may be another one: compared as numbers.
    return f"{TAKEN} {number} 0 0 {decision.propensity.hex()} {names}", decision.worker


def parts(line: str) -> tuple[object, ...]:
    answer, number, http, status, propensity, words = line.split(" ", 5)
    return answer, number, http, status, float.fromhex(propensity), words


def script(own: Router, began_ns: int, prompts: bool = False) -> Iterator[tuple[str, str]]:
    """Lines for the program, and what it is to write; the router of this process does the same. `prompts`: some
    requests have one."""
    served: list[tuple[int, str, bool]] = []
    for k in range(REQUESTS):
        at_ns = began_ns + 700_000 * k
        now_s = at_ns * 1e-9
        request, grpc = request_of(k)
        prompt = prompt_of(k) if prompts else ("-", 0)
        request = with_prompt(request, prompt)
        number = own.next_number
        line, worker = expected(own, request, grpc, now_s)
        yield line_of(request, grpc, at_ns, prompt), line
        served.append((number, worker, grpc))
        if prompts and k % 4 == 2 and k > 2 and served[k - 3][1]:
            own.observe(FirstToken(served[k - 3][0]), now_s)
            yield f"token {at_ns} {k - 3}", ""
        if k % 3 == 2 and served[2 * k // 3][1]:
            number, worker, grpc = served[2 * k // 3]
            served[2 * k // 3] = (number, "", grpc)
            status, latency_s = (0, 14, 13, 3, 4)[k % 5], 0.001 * (1 + k % 7)
            by = worker if k % 4 else f"w{(int(worker[1:]) + 1) % WORKERS}"
            ok, void = {0: (True, ""), 14: (False, ""), 13: (False, "request"), 3: (False, "client")}.get(
                status, (False, "deadline")
            )
            tokens = k % 90 if prompts else 0
            own.observe(Finished(number, by, latency_s, ok, void, tokens), now_s)  # type: ignore[arg-type]  # of a table
            yield f"end {at_ns} {2 * k // 3} {latency_s!r} {status} {endpoint(by, grpc)} {tokens}", ""
