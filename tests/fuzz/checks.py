"""What must be true of the gateway after an attack as before it."""

import asyncio
import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import aiohttp
import grpc
import psutil
from tritonclient.grpc import service_pb2

from balancer.proxy.messages import INFER
from balancer.stack.stack import read_samples
from dev.stack import MODEL, POLICY
from fuzz.target import Target

_RSS_LIMIT = 0.05
"""By how much resident memory may have grown, as a share."""
_SPARE_DESCRIPTORS = 4
"""Connections that come and go by themselves."""
_PATIENCE_S = 20.0
_HONEST = 200
_IN_TURN = "round_robin"
"""Asks every worker that may be asked; what others prefer is theirs, and who speaks as Envoy can forge that."""
_POLL_S = 0.25
_ANEW = (("cache-control", "no-cache"),)
"""Each honest request is to reach a worker."""
_GAUGES = tuple(f"balancer_worker_{name}" for name in ("in_flight", "pending", "tokens", "error_rate"))
_UNKNOWN_ALLOWED = frozenset({"latency_s", "report_age_s", "utilisation", "tokens"})
"""Columns that /workers shows as null where there is no value yet."""
_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Warning|Exit|Interrupt)\b.*")
_IN_JSON = re.compile(r"\\n((?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception)\b[^\\\"]*)")


@dataclass(frozen=True)
class Size:
    """Of a process under attack."""

    rss_bytes: int
    descriptors: int


def sizes(target: Target) -> dict[str, Size]:
    processes = {name: psutil.Process(target.parts()[name].process.pid) for name in ("balancer", "envoy")}
    return {name: Size(each.memory_info().rss, each.num_fds()) for name, each in processes.items()}


async def settled(target: Target, before: dict[str, Size] | None = None) -> dict[str, Size]:
    """Once connections are closed and memory no longer falls; or after some seconds."""
    now = sizes(target)
    for _ in range(int(_PATIENCE_S / _POLL_S)):
        await asyncio.sleep(_POLL_S)
        last, now = now, sizes(target)
        if last == now and (before is None or not growth(before, now)):
            break
    return now


def growth(before: dict[str, Size], after: dict[str, Size]) -> list[str]:
    """What has grown beyond the limits, in words."""
    found = []
    for name, was in before.items():
        now = after[name]
        if now.rss_bytes > was.rss_bytes * (1 + _RSS_LIMIT):
            found.append(f"{name}: resident memory grew from {was.rss_bytes:,} to {now.rss_bytes:,} bytes")
        if now.descriptors > was.descriptors + _SPARE_DESCRIPTORS:
            found.append(f"{name}: descriptors grew from {was.descriptors} to {now.descriptors}")
    return found


async def all_of(target: Target) -> list[str]:
    """All but growth: numbers are numbers, nothing failed inside, nothing passed by, honest requests are served, and
    nothing is left in flight."""
    try:
        found = [*await _honest(target), *await _numbers(target), *await _in_flight(target)]
    except (aiohttp.ClientError, TimeoutError, TypeError) as error:
        return [f"the admin pages do not answer after the attack: {error!r}"]
    for worker in target.workers:
        found += [f"{worker.name} got a call that is never balanced: {path}" for path in worker.bypassed]
    return found


async def _in_flight(target: Target) -> list[str]:
    """Workers that count requests some seconds after the last one has ended."""
    for _ in range(int(_PATIENCE_S / _POLL_S)):
        busy = [worker for worker in (await target.get("/workers"))["workers"] if worker["in_flight"]]
        if not busy:
            return []
        await asyncio.sleep(_POLL_S)
    return [f"/workers: {worker['worker']} has {worker['in_flight']} requests in flight, of none" for worker in busy]


async def _numbers(target: Target) -> list[str]:
    """Numbers about workers that are no numbers, or negative; and errors that handlers counted."""
    found = []
    for worker in (await target.get("/workers"))["workers"]:
        values = {name: value for name, value in worker.items() if value is not None or name not in _UNKNOWN_ALLOWED}
        for model, service in worker["service"].items():
            values |= {f"service.{model}.{name}": value for name, value in service.items()}
        for name, value in values.items():
            if value is None or (isinstance(value, float | int) and not (math.isfinite(value) and value >= 0)):
                found.append(f"/workers: {worker['worker']}.{name} is {value}")
    for sample in await read_samples(target.admin()):
        if sample.name in _GAUGES and not (math.isfinite(sample.value) and sample.value >= 0):
            found.append(f"/metrics: {sample.name}{sample.labels} is {sample.value}")
        if sample.name == "balancer_handler_errors_total" and sample.value:
            found.append(f"/metrics: {sample.name}{sample.labels} is {sample.value}, not 0")
    return found


async def _honest(target: Target) -> list[str]:
    """Send honest requests, gRPC and REST, and say what was wrong with how they were served."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while not all(worker["ready"] for worker in (await target.get("/workers"))["workers"]):
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        return [f"not every worker is ready {_PATIENCE_S:g} s after the attack, for all its reports"]
    picks = await target.metric("balancer_decisions_total")
    failures: Counter[str] = Counter()
    found = []
    async with grpc.aio.insecure_channel(target.url) as channel, aiohttp.ClientSession() as session:
        infer: Any = channel.unary_unary(INFER)
        for policy in (_IN_TURN, POLICY):
            await target.swap(policy)
            served = {worker.name: worker.served for worker in target.workers}
            for _ in range(_HONEST // 4):
                failures += await _ask(target, infer, session)
            if policy == _IN_TURN:
                idle = (worker.name for worker in target.workers if worker.served == served[worker.name])
                found = [f"honest requests: none was served by {name}, in turn with the others" for name in idle]
    found += [f"honest requests: {count} failed with {what}" for what, count in failures.items()]
    picked = int(await target.metric("balancer_decisions_total") - picks)
    if picked < _HONEST:
        found.append(f"honest requests: {picked} of {_HONEST} were placed by policy; Envoy fell back for the rest")
    return found


async def _ask(target: Target, infer: Any, session: aiohttp.ClientSession) -> Counter[str]:
    """One honest request over gRPC and one over REST; returns what failed."""
    failed: Counter[str] = Counter()
    request = service_pb2.ModelInferRequest(model_name=MODEL).SerializeToString()
    try:
        await infer(request, timeout=_PATIENCE_S, metadata=_ANEW)
    except grpc.aio.AioRpcError as error:
        failed[f"gRPC {error.code().name}: {error.details()}"] += 1
    url = f"http://{target.url}/v2/models/{MODEL}/infer"
    async with session.post(url, data=b'{"inputs":[]}', headers=dict(_ANEW)) as response:
        if response.status != 200:
            failed[f"REST {response.status}: {(await response.text())[:200]}"] += 1
    return failed


class Log:
    """Exceptions that the balancer's log shows, as they come."""

    def __init__(self, target: Target) -> None:
        self._path = target.log_path
        self._read_bytes = self._path.stat().st_size if self._path.exists() else 0

    def exceptions(self) -> set[str]:
        """Those since the last look, by their last line with numbers left out."""
        with self._path.open("rb") as log:
            log.seek(self._read_bytes)
            new = log.read()
        self._read_bytes += len(new)
        lines = new.decode(errors="replace").splitlines()
        found = {found for line in lines for found in _IN_JSON.findall(line)} | set(filter(_EXCEPTION.match, lines))
        return set(map(_shape, found))


def _shape(line: str) -> str:
    """A message without what differs from one to the next."""
    return re.sub(r"-?\d[\d.e+-]*", "N", re.sub(r"'.*", "...", line))[:160]
