"""The whole stack with `listen.fleet`, and Tritons whose models clients may load."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.stack import Stack
from tools.stack.ports import free_port_range

MODELS = ("identity", "sequence_sum", "string_upper")
LOADED = MODELS[:2]
"""At the start; the third one is in the repository."""


@asynccontextmanager
async def fleet_stack(
    directory: Path, front: str, callers: Sequence[str] = ("*",), workers: int = 3, **control: Any
) -> AsyncIterator[Stack]:
    """Running while the block does."""
    port = free_port_range(2)
    settings = {
        "envoy": {"frontend": front, "shared_folder": str(directory / "shared")},
        "listen": {"fleet": f"127.0.0.1:{port}"},
        "fleet": {"control": {"callers": list(callers), **control}},
    }
    loads = [f"--load-model={model}" for model in LOADED]
    stack = Stack(
        directory,
        workers=workers,
        models=MODELS,
        settings=settings,
        triton_arguments=("--model-control-mode=explicit", *loads),
    )
    try:
        await stack.start()
        yield stack
    finally:
        await stack.stop()
