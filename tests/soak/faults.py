"""What can happen to a deployment, each from its beginning until all is as before."""

import asyncio
import contextlib
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import grpc
from fuzz import inputs, wire
from support.weights import write_weights

from balancer.errors import OperatorError
from balancer.proxy.messages import INFER
from balancer.stack.process import Child, LocalProcess
from balancer.stack.stack import READY_S, replace_text
from dev.stack import POLICY
from soak.deployment import hang, until
from soak.event import Site

_HOSTILE_CLIENTS = 4
_HOSTILE_PAUSE_S = 0.02
_GIVES_UP_S = 0.003
_GARBAGE = (
    "policy: [",
    "policy: {name: no_such_policy}",
    "",
    "\x00\xff",
    "policy: {name: learned, options: {x: .inf}}\n" * 50,
)
_OTHER_POLICIES = (
    "round_robin",
    "least_requests",
    "power_of_two",
    "wlpr",
    "peak_ewma",
    "prequal",
    "token_bucket",
    "learned",
)


async def balancer_killed(site: Site) -> None:
    """kill -9, and a new one after some time."""
    await _end_balancer(site, site.deployment.balancer.kill())


async def balancer_restarted(site: Site) -> None:
    """SIGTERM, and a new one."""
    await _end_balancer(site, site.deployment.balancer.stop())


async def _end_balancer(site: Site, ending: Awaitable[None]) -> None:
    await ending
    await site.pause(0.2, 3.0)
    await site.deployment.start_balancer()
    await site.picks()


async def balancer_hung(site: Site) -> None:
    """SIGSTOP for some seconds."""
    balancer = site.deployment.balancer
    hang(balancer)
    try:
        await until(site.deployment.balancer_left_out, "Envoy leaves the balancer out")
        site.event.noticed()
        await site.pause(0.2, 3.0)
    finally:
        hang(balancer, stopped=False)
    await site.picks()


async def agent_killed(site: Site) -> None:
    """kill -9 of one agent, and a new one."""
    await site.deployment.agents[site.number].kill()
    await site.left_out()
    await site.pause(0.2, 2.0)
    await _start_agent(site)


async def _start_agent(site: Site) -> None:
    await site.deployment.start_agent(site.number)
    await site.answers()


async def agent_hung(site: Site) -> None:
    """SIGSTOP of one agent."""
    await _hang(site, site.deployment.agents[site.number], 2.0)


async def _hang(site: Site, part: LocalProcess, longest_s: float) -> None:
    """SIGSTOP of a part of the drawn worker until the worker is left out, and up to `longest_s` more."""
    hang(part)
    try:
        await site.left_out()
        await site.pause(0.2, longest_s)
    finally:
        hang(part, stopped=False)
    await site.answers()


async def all_agents_killed(site: Site) -> None:
    """kill -9 of all; routing goes on with what is known."""
    deployment = site.deployment
    await asyncio.gather(*(agent.kill() for agent in deployment.agents))
    await site.reports(fresh=False)
    site.event.noticed()
    await site.pause(1.0, 4.0)
    for number in range(len(deployment.agents)):
        await deployment.start_agent(number)
    site.event.mended()
    await site.reports(fresh=True)


async def triton_killed(site: Site) -> None:
    """kill -9 of a Triton, and a new one under its name."""
    triton = site.deployment.tritons[site.number]
    site.event.killed.append((site.name, time.time()))
    await triton.kill()
    await site.left_out()
    await site.pause(0.2, 2.0)
    await _start_triton(site)


async def _start_triton(site: Site) -> None:
    await site.deployment.start_triton(site.number)
    await site.deployment.tritons[site.number].wait_ready(READY_S)
    await site.answers()


async def triton_stopped(site: Site) -> None:
    """SIGTERM to a Triton, and a new one once it has ended."""
    triton = site.deployment.tritons[site.number]
    sent_s = time.time()
    triton.process.send_signal(signal.SIGTERM)
    ended = asyncio.ensure_future(triton.wait())
    await site.left_out()
    await ended
    site.event.down.append((site.name, sent_s, time.time()))
    await triton.kill()
    await _start_triton(site)


async def worker_drained(site: Site) -> None:
    """`balancer agent drain`, then SIGTERM to its Triton, as a pre-stop hook does; and a new one."""
    deployment = site.deployment
    command = Child(
        ["agent", "drain", "--control", str(deployment.control(site.name)), "--timeout", "30"],
        log_path=deployment.directory / f"{site.name}-drain.log",
    )
    await command.start()
    await site.left_out()
    if status := await command.wait():
        raise AssertionError(f"balancer agent drain ended with status {status}; {command.log_tail()}")
    triton = deployment.tritons[site.number]
    triton.process.send_signal(signal.SIGTERM)
    await triton.wait()
    await triton.kill()
    await _start_triton(site)


async def triton_hung(site: Site) -> None:
    """SIGSTOP of a Triton and its models for some seconds: what is there waits.

    Some do not survive it: Triton takes a model's process that was silent for dead, and crashes a little later.
    """
    triton = site.deployment.tritons[site.number]
    crashed = asyncio.ensure_future(triton.wait())
    hung = asyncio.ensure_future(_hang(site, triton, 3.0))
    try:
        await asyncio.wait([crashed, hung], return_when=asyncio.FIRST_COMPLETED)
        if hung.done():
            hung.result()
            return
        site.event.killed.append((site.name, time.time()))
        site.event.details["crashed"] = triton.process.returncode
    finally:
        for task in (crashed, hung):
            task.cancel()
        await asyncio.gather(crashed, hung, return_exceptions=True)
    await triton.kill()
    await _start_triton(site)


async def worker_removed(site: Site) -> None:
    """Drained by the list, removed once it is empty, and listed again: as docs/operate/run.md says."""
    deployment, name = site.deployment, site.name
    deployment.draining.add(name)
    deployment.list_anew()
    try:
        await site.left_out()

        async def empty() -> bool:
            return bool((await deployment.worker(name)).get("in_flight") == 0)

        await until(empty, f"{name} has nothing in flight")
        deployment.unlisted.add(name)
        deployment.list_anew()

        async def gone() -> bool:
            return not await deployment.worker(name)

        await until(gone, f"{name} is gone from the list")
        await site.pause(0.2, 2.0)
    finally:
        deployment.draining.discard(name)
        deployment.unlisted.discard(name)
        deployment.list_anew()
    await site.answers()


def _options(policy: str, folder: Path) -> dict[str, Any]:
    if policy != "learned":
        return {}
    write_weights(folder / "learned.npz")
    return {"file": "learned.npz"}


async def policy_swapped(site: Site) -> None:
    """Another policy in the config, and the first one again."""
    other = site.rng.choice(_OTHER_POLICIES)
    site.event.details["policy"] = other
    try:
        await site.deployment.swap(other, **_options(other, site.deployment.directory))
        site.event.noticed()
        await site.pause(0.5, 3.0)
        await site.deployment.swap(POLICY)
    except OperatorError as error:
        raise AssertionError(str(error)) from error
    site.event.mended()


async def config_broken(site: Site) -> None:
    """A config that cannot be read, or says what cannot be."""
    await _break(site, site.deployment.config_path, site.rng.choice(_GARBAGE))


async def list_broken(site: Site) -> None:
    """A list of workers that cannot be read, or is empty."""
    text = site.rng.choice(("workers: [", "workers: [{name: x}]", "\x00\xff", "[]\n- x", "workers: 7"))
    await _break(site, site.deployment.directory / "workers.yaml", text)


async def _break(site: Site, path: Path, text: str) -> None:
    site.event.details["text"] = text[:60]
    deployment, good = site.deployment, path.read_text()
    log, before = deployment.log_path, deployment.log_path.stat().st_size

    async def logged() -> bool:
        return log.stat().st_size > before

    replace_text(path, text)
    try:
        await until(logged, f"the log names the bad {path.name}", patience_s=5.0)
        site.event.noticed()
        await site.pause(0.2, 2.0)
    finally:
        replace_text(path, good)
    await site.picks()


async def envoy_killed(site: Site) -> None:
    """kill -9 of Envoy, and a new one."""
    site.event.killed.append(("envoy", time.time()))
    began_s = time.time()
    await site.deployment.envoy.kill()
    await site.pause(0.0, 1.0)
    await site.deployment.start_envoy()
    site.event.down.append(("envoy", began_s, time.time()))
    await site.picks()


async def certificates_rotated(site: Site) -> None:
    """New certificates and keys for every part; one agent comes back with its new one."""
    deployment = site.deployment
    deployment.rotate_certificates()
    served = deployment.new_certificate_served
    await until(lambda: asyncio.to_thread(served), "the balancer shows its new certificate")
    site.event.noticed()
    await deployment.agents[site.number].stop()
    await _start_agent(site)


async def strangers(site: Site) -> None:
    """Hostile clients for some seconds: odd headers, uploads cut short, calls given up."""
    answers: Counter[str] = Counter()
    endpoint, rng = site.deployment.url, site.rng
    async with grpc.aio.insecure_channel(endpoint) as channel:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(rng.uniform(2.0, 5.0)):
                odd = (_odd(endpoint, rng, answers) for _ in range(_HOSTILE_CLIENTS))
                await asyncio.gather(*odd, _fickle(channel, rng, answers))
    site.event.details["answers"] = dict(answers.most_common(8))
    await site.picks()


async def _odd(endpoint: str, rng: Random, answers: Counter[str]) -> None:
    while True:
        request = rng.choice((wire.http1_request, wire.http2_call))(rng)
        answers[await wire.exchange(endpoint, request)] += 1
        await asyncio.sleep(_HOSTILE_PAUSE_S)


async def _fickle(channel: grpc.aio.Channel, rng: Random, answers: Counter[str]) -> None:
    """Calls whose client leaves at any moment."""
    infer: Any = channel.unary_unary(INFER)
    while True:
        call = infer(inputs.inference(rng)[:3000])
        await asyncio.sleep(rng.random() * _GIVES_UP_S)
        call.cancel()
        answers["given up"] += 1
        await asyncio.sleep(_HOSTILE_PAUSE_S)


@dataclass(frozen=True)
class Fault:
    name: str
    """As the table calls the part."""
    happen: Callable[[Site], Awaitable[None]]
    part: str = ""
    """What it breaks, so that two faults do not break the same: `worker` means the one that was drawn."""
    restarts: str = ""
    """The process whose memory cannot be watched across it."""
    noticed_by: str = ""
    """Who knew, for the table."""
    remedy: str = ""
    """What an operator does, for the table."""


FAULTS = (
    Fault("balancer killed", balancer_killed, "balancer", "balancer", "Envoy, at once", "restart it"),
    Fault("balancer restarted", balancer_restarted, "balancer", "balancer", "Envoy, at once"),
    Fault("balancer hangs", balancer_hung, "balancer", "", "Envoy's health check", "by itself, or restart it"),
    Fault("agent killed", agent_killed, "worker", "agent", "its stream ends", "restart it"),
    Fault("agent hangs", agent_hung, "worker", "", "its silence", "by itself, or restart it"),
    Fault(
        "all agents killed",
        all_agents_killed,
        "workers",
        "agents",
        "`balancer_worker_report_age_seconds`",
        "restart them",
    ),
    Fault("Triton killed", triton_killed, "worker", "", "the next report", "restart it under its name"),
    Fault("Triton stops by itself (SIGTERM)", triton_stopped, "worker", "", "report", "restart it under its name"),
    Fault("`balancer agent drain`, then SIGTERM", worker_drained, "worker", "", "the command", "restart it"),
    Fault("Triton hangs", triton_hung, "worker", "", "report", "by itself, or restart it"),
    Fault("worker drained, removed, listed again", worker_removed, "worker", "", "discovery"),
    Fault("policy swapped", policy_swapped, "config", "", "`serve`"),
    Fault("bad config", config_broken, "config", "", "the log", "correct it"),
    Fault("list of workers bad", list_broken, "workers", "", "the log", "correct it"),
    Fault("certificates rotated", certificates_rotated, "worker", "agent", "`serve`"),
    Fault("Envoy killed", envoy_killed, "envoy", "envoy", "whatever is in front", "restart it"),
    Fault("hostile clients", strangers, "", "", ""),
)
