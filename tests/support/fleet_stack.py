"""The whole stack with `listen.fleet`, and Tritons whose models clients may load."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from balancer.stack.process import free_port_range
from support.running import running
from support.stack import Stack

MODELS = ("identity", "sequence_sum", "string_upper")
LOADED = MODELS[:2]
"""At the start; the third one is in the repository."""


@asynccontextmanager
async def fleet_stack(
    directory: Path,
    front: str,
    callers: Sequence[str] = ("*",),
    keys: str = "",
    loaded: Sequence[str] = LOADED,
    arguments: Sequence[str] = (),
    **control: Any,
) -> AsyncIterator[Stack]:
    """Running while the block does. `keys`: what the file of API keys says; empty: none is asked for."""
    # Both kinds of address, one with each front end.
    fleet = f"127.0.0.1:{free_port_range(2)}" if front == "pick" else f"unix:{directory}/fleet"
    settings: dict[str, dict[str, Any]] = {
        "envoy": {"frontend": front, "shared_folder": str(directory / "shared")},
        "listen": {"fleet": fleet},
        "fleet": {"control": {"callers": list(callers), **control}},
    }
    if keys:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "keys.yaml").write_text(keys)
        settings["envoy"]["api_keys"] = {"file": "keys.yaml"}
    loads = [f"--load-model={model}" for model in loaded]
    stack = Stack(
        directory,
        models=tuple({*MODELS, *loaded}),
        settings=settings,
        triton_arguments=("--model-control-mode=explicit", *loads, *arguments),
    )
    async with running(stack):
        yield stack
