"""Runs the balancer: one process in the foreground, or several that share the port, each restarted if it dies."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import uvloop

from balancer.config.config import Config, load
from balancer.config.learning import with_learned
from balancer.config.overrides import Overrides
from balancer.files.yaml_document import ConfigError
from balancer.server import malloc_trim as heap
from balancer.server.app import App
from balancer.server.logs import configure
from balancer.server.security import listeners
from balancer.server.supervisor import Supervisor

logger = logging.getLogger(__name__)

_PARENT_CHECK_S = 0.5


def serve(config_path: Path | None, values: Mapping[str, Any]) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        config_path: The config file, watched while it runs; None: defaults.
        values: By dotted field, what the command line sets over the file.

    Raises:
        ConfigError: the config does not fit.
        AddressInUseError: a port is taken.
        OperatorError: a process ended before it served; the message is its own.
    """
    overrides = Overrides(values)
    config = overrides(load(config_path) if config_path else Config())
    configure(config.log)
    config = _with_learned(config, config_path)
    for warning in listeners.warnings(config):
        logger.warning("%s", warning)
    if config.processes == 1:
        _run(config_path, overrides, config)
    else:
        Supervisor(config.processes, functools.partial(_run, config_path, overrides, config)).run()


def _with_learned(config: Config, config_path: Path | None) -> Config:
    """Beginning without it is better than not to begin."""
    try:
        return config if config_path is None else with_learned(config, config_path)[0]
    except ConfigError as error:
        logger.error("what balancer learn put in force is left out: %s", error)
        return config


def _run(
    config_path: Path | None,
    overrides: Overrides,
    config: Config,
    process: int = 0,
    serving: Callable[[], None] = lambda: None,
) -> None:
    heap.gather()
    configure(config.log)
    parent = os.getppid() if process or config.processes > 1 else None

    async def main() -> None:
        app = App(config, config_path, process, overrides, serving)
        heap.settle()
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        watcher = asyncio.create_task(_stop_with_parent(parent, stop)) if parent is not None else None
        await app.run(stop)
        if watcher is not None:
            watcher.cancel()

    uvloop.run(main())


async def _stop_with_parent(parent: int, stop: asyncio.Event) -> None:
    """A process whose supervisor was killed must not hold on to the port."""
    while os.getppid() == parent:
        await asyncio.sleep(_PARENT_CHECK_S)
    stop.set()
