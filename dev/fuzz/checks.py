"""What must be true of the gateway after an attack as before it."""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import aiohttp
import grpc
import numpy as np
import psutil
from tritonclient.grpc import service_pb2

from balancer.proxy.messages import INFER
from balancer.stack.stack import read_samples
from dev.fuzz.rig import Target
from dev.stack import MODEL, POLICY

RSS_LIMIT = 0.05
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
_GAUGES = ("in_flight", "pending", "tokens", "error_rate")
_UNKNOWN_ALLOWED = frozenset({"latency_s", "report_age_s", "utilisation", "tokens"})
"""Columns that /workers shows as null where there is no value yet."""
_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Warning|Exit|Interrupt)\b.*")
_IN_JSON = re.compile(r"\\n((?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception)\b[^\\\"]*)")


@dataclass(frozen=True)
class Size:
    """Resident memory and descriptors of the processes under attack."""

    rss_bytes: dict[str, int]
    descriptors: dict[str, int]


def size(target: Target) -> Size:
    processes = {
        "balancer": psutil.Process(target.balancer.process.pid),
        "envoy": psutil.Process(target.envoy.process.pid),
    }
    return Size(
        {name: int(process.memory_info().rss) for name, process in processes.items()},
        {name: process.num_fds() for name, process in processes.items()},
    )


async def settled(target: Target, before: Size | None = None) -> Size:
    """Once nothing is in flight, connections are closed and memory no longer falls; or after some seconds."""
    for _ in range(int(_PATIENCE_S / _POLL_S)):
        if not any(worker["in_flight"] for worker in (await page(target, "/workers"))["workers"]):
            break
        await asyncio.sleep(_POLL_S)
    now = size(target)
    for _ in range(int(_PATIENCE_S / _POLL_S)):
        await asyncio.sleep(_POLL_S)
        last, now = now, size(target)
        if last == now and (before is None or not growth(before, now)):
            break
    return now


def growth(before: Size, after: Size) -> list[str]:
    """What has grown beyond the limits, in words."""
    found = []
    for name, was in before.rss_bytes.items():
        if after.rss_bytes[name] > was * (1 + RSS_LIMIT):
            share = after.rss_bytes[name] / was - 1
            found.append(
                f"{name}: resident memory grew by {share:.1%}, from {was:,} to {after.rss_bytes[name]:,} bytes"
            )
    for name, had in before.descriptors.items():
        if after.descriptors[name] > had + _SPARE_DESCRIPTORS:
            found.append(f"{name}: descriptors grew from {had} to {after.descriptors[name]}")
    return found


async def page(target: Target, path: str) -> Any:
    """A JSON page of the admin interface."""
    timeout = aiohttp.ClientTimeout(total=_PATIENCE_S)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{target.admin()}{path}") as response:
        return await response.json()


async def columns(target: Target) -> list[str]:
    """Numbers about workers that are no numbers, or negative, in words."""
    found = []
    for worker in (await page(target, "/workers"))["workers"]:
        for name, value in worker.items():
            unknown = value is None and name not in _UNKNOWN_ALLOWED
            if unknown or (isinstance(value, float | int) and not (math.isfinite(value) and value >= 0)):
                found.append(f"/workers: {worker['worker']}.{name} is {value}")
        for model, service in worker["service"].items():
            found += [
                f"/workers: {worker['worker']}.service.{model}.{name} is {value}"
                for name, value in service.items()
                if value is None or not (math.isfinite(value) and value >= 0)
            ]
    gauges = [f"balancer_worker_{name}" for name in _GAUGES]
    for sample in await read_samples(target.admin()):
        if sample.name in gauges and not (math.isfinite(sample.value) and sample.value >= 0):
            found.append(f"/metrics: {sample.name}{sample.labels} is {sample.value}")
    return found


async def honest(target: Target) -> list[str]:
    """Send honest requests, gRPC and REST, and say what was wrong with how they were served."""
    deadline_s = asyncio.get_running_loop().time() + _PATIENCE_S
    while not all(worker["ready"] for worker in (await page(target, "/workers"))["workers"]):
        if asyncio.get_running_loop().time() > deadline_s:
            return [
                f"honest requests: not every worker is ready {_PATIENCE_S:g} s after the attack, for all its reports"
            ]
        await asyncio.sleep(_POLL_S)
    picks = await target.metric("balancer_decisions_total")
    failures: Counter[str] = Counter()
    idle: set[str] = set()
    async with grpc.aio.insecure_channel(target.url) as channel, aiohttp.ClientSession() as session:
        infer: Any = channel.unary_unary(INFER)
        for policy in (_IN_TURN, POLICY):
            await _in_force(target, policy)
            served = {worker.name: worker.served for worker in target.workers}
            for _ in range(_HONEST // 4):
                failures += await _ask(target, infer, session)
            if policy == _IN_TURN:
                idle = {worker.name for worker in target.workers if worker.served == served[worker.name]}
    found = [f"honest requests: {count} failed with {what}" for what, count in failures.items()]
    picked = int(await target.metric("balancer_decisions_total") - picks)
    if picked < _HONEST:
        found.append(f"honest requests: {picked} of {_HONEST} were placed by policy; Envoy fell back for the rest")
    return [*found, *(f"honest requests: none was served by {name}, in turn with the others" for name in sorted(idle))]


async def _in_force(target: Target, policy: str) -> None:
    """Swap the policy, and return once it decides."""
    target.write_config({"name": policy})
    async with asyncio.timeout(_PATIENCE_S):
        while (await page(target, "/workers"))["policy"] != policy:
            await asyncio.sleep(_POLL_S)


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

    def exceptions(self) -> Counter[str]:
        """Those since the last look, by their last line with numbers left out."""
        with self._path.open("rb") as log:
            log.seek(self._read_bytes)
            new = log.read()
        self._read_bytes += len(new)
        found: Counter[str] = Counter()
        in_traceback = False
        for line in new.decode(errors="replace").splitlines():
            for inside in _IN_JSON.findall(line):
                found[_shape(inside)] += 1
            if line.startswith("Traceback (most recent call last)"):
                in_traceback = True
            elif in_traceback and line and not line.startswith((" ", "\t")):
                if _EXCEPTION.match(line):
                    found[_shape(line)] += 1
                in_traceback = False
        return found


def _shape(line: str) -> str:
    """A message without what differs from one to the next."""
    return re.sub(r"-?\d[\d.e+-]*", "N", re.sub(r"'.*", "...", line))[:160]


async def handler_errors(target: Target) -> dict[str, float]:
    samples = await read_samples(target.admin())
    return {
        sample.labels.get("handler", ""): sample.value
        for sample in samples
        if sample.name == "balancer_handler_errors_total" and sample.value
    }


async def refused(target: Target) -> dict[str, float]:
    """Inputs refused by message and field, and requests refused by reason."""
    counts: dict[str, float] = {}
    for sample in await read_samples(target.admin()):
        if sample.value and sample.name in ("balancer_refused_inputs_total", "balancer_refusals_total"):
            kind = "request" if sample.name == "balancer_refusals_total" else ""
            texts = [text for _, text in sorted(sample.labels.items(), reverse=True)]
            counts[" ".join(filter(None, [kind, *texts]))] = sample.value
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def megabytes(number: int) -> str:
    return f"{np.round(number / 1e6, 1):,} MB"
