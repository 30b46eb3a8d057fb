"""Who routes: our policies by `native`, and SGLang's routers; each before servers of its own that know nothing yet."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from balancer.stack.stack import OwnStack
from dev.emulated_llm.process import new_emulated
from dev.peers import SGLANG, SMG, installed, new_router, running
from simulator.scenario import Scenario

OURS = "expected_latency"


@dataclass(frozen=True, slots=True)
class Candidate:
    name: str
    policy: str
    options: dict[str, Any] = field(default_factory=dict)
    peer: str = ""
    """Empty: it is a policy of ours."""


CANDIDATES = (
    Candidate(OURS, OURS),
    Candidate(f"{OURS}, ttft_weight 1", OURS, {"ttft_weight": 1.0}),
    Candidate("least_requests", "least_requests"),
    Candidate("round_robin", "round_robin"),
    Candidate(f"{SGLANG}, cache_aware", "cache_aware", peer=SGLANG),
    Candidate(f"{SMG}, cache_aware", "cache_aware", peer=SMG),
)


@contextlib.asynccontextmanager
async def serving(scenario: Scenario, block_tokens: int, candidate: Candidate, folder: Path) -> AsyncIterator[str]:
    """The address at which it answers, before the scenario's workers, each of which caches blocks of so many tokens."""
    devices = {worker.name: worker.device for worker in scenario.fleet.workers}
    servers = new_emulated(devices, scenario.name, folder, block_tokens)
    if not candidate.peer:
        native = {"envoy": {"frontend": "native", "shared_folder": str((folder / "shared").resolve())}}
        policy = {"name": candidate.policy, "options": candidate.options}
        async with OwnStack(folder, language_models=servers, policy=policy, settings=native) as stack:
            yield stack.url
        return
    async with contextlib.AsyncExitStack() as ending:
        for server in servers:
            ending.push_async_callback(server.stop)
            await server.start()
        for server in servers:
            await server.wait_ready()
        specs = [server.spec for server in servers]
        router = new_router(candidate.peer, candidate.policy, installed(), specs, folder)
        yield (await ending.enter_async_context(running(router))).endpoint
