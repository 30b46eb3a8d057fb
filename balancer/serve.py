"""Runs the balancer: one process in the foreground, or several that share the port, each restarted if it dies."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import uvloop

from balancer import exposure
from balancer.app import App
from balancer.config import Config, from_mapping, load
from balancer.logs import configure
from balancer.supervisor import Supervisor
from balancer.yaml_document import ConfigError, Problem

logger = logging.getLogger(__name__)

_PARENT_CHECK_S = 0.5


class Overrides:
    """What the command line sets over the file, now and after every edit of it."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """`values` by dotted field, such as `listen.admin`."""
        self._values = dict(values)

    def __call__(self, config: Config) -> Config:
        """The config with the overrides in place; ConfigError where they do not fit."""
        if not self._values:
            return config
        data, defaults = config.model_dump(mode="json"), Config().model_dump(mode="json")
        for field, value in self._values.items():
            section, name = _section(data, field)
            if section[name] not in (value, _section(defaults, field)[0][name]):
                logger.warning("%s is set on the command line; what the file says of it is not used", field)
            section[name] = value
        return from_mapping(data, "command line over config")


def _section(data: dict[str, Any], field: str) -> tuple[dict[str, Any], str]:
    """The mapping that holds a dotted field, and the field's name in it; ConfigError where there is none."""
    *sections, name = field.split(".")
    section = data
    for part in sections:
        inner = section.get(part)
        section = inner if isinstance(inner, dict) else {}
    if name not in section:
        message = f"--set {field}: there is no such field; docs/config.md lists them"
        raise ConfigError([Problem("command line", None, field, message)])
    return section, name


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
    for warning in exposure.warnings(config):
        logger.warning("%s", warning)
    if config.processes == 1:
        _run(config_path, overrides, config)
    else:
        Supervisor(config.processes, functools.partial(_run, config_path, overrides, config)).run()


def _run(
    config_path: Path | None,
    overrides: Overrides,
    config: Config,
    process: int = 0,
    serving: Callable[[], None] = lambda: None,
) -> None:
    configure(config.log)
    parent = os.getppid() if process or config.processes > 1 else None

    async def main() -> None:
        app = App(config, config_path, process, overrides, serving)
        # What the start made stays for good; a full collection that looked through it would hold requests for over
        # 10 ms.
        gc.collect()
        gc.freeze()
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
