"""The config file followed while the balancer runs, and the state of the config that `/config` and metrics show."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from balancer.config.changes import changes, words_of
from balancer.config.config import Config, ConfigError, needs_restart, parse
from balancer.config.frontend import check_live
from balancer.config.learning import Learned, with_learned
from balancer.files.off_loop import OffLoop
from balancer.files.watch import versions
from balancer.files.yaml_document import Problem

_MOST_KEPT = 20
_PARSE_LIMIT_S = 60.0
"""For a file of the largest size, with the profiles and weights that it names."""


async def watch(
    path: Path,
    on_change: Callable[[Config], None],
    on_error: Callable[[ConfigError], None],
    stop: asyncio.Event,
    *,
    running: Config | None = None,
    overrides: Callable[[Config], Config] = lambda config: config,
    beside: Callable[[], Path | None] = lambda: None,
) -> None:
    """Report every content of the config file at `path` until `stop` is set, on the event loop's thread.

    A content that fits goes to `on_change`, also where its effective config is the one in force (a comment edited, a
    bad file put right); one that does not, or a file that cannot be read, goes to `on_error`. What the file says at
    the start is reported only where it is not `running`, so that nothing written between load and watch is lost.
    `overrides` is called on every config, in a thread: it may validate, and read the files that the config names. So it
    is whenever the file `beside` changes.
    """
    first = True
    parser: OffLoop[Config] = OffLoop(_PARSE_LIMIT_S)
    async with contextlib.aclosing(versions(path, stop, beside)) as contents:
        async for content in contents:
            try:
                if isinstance(content, ConfigError):
                    raise content
                config = await _parsed(parser, content, path, overrides)
            except ConfigError as error:
                on_error(error)
            else:
                if not (first and config == running):
                    on_change(config)
            first = False


async def _parsed(parser: OffLoop[Config], content: bytes, path: Path, overrides: Callable[[Config], Config]) -> Config:
    """The config of a content. Where a file that it names hangs, that is waited for no longer than the limit."""
    # Off the loop: parsing takes milliseconds, for which requests need not wait.
    try:
        return await parser.run(lambda: overrides(parse(content, str(path))))
    except TimeoutError:
        message = (
            f"was not read within {parser.limit_s:g} s; does a file that it names lie on a file system that is gone?"
        )
        raise ConfigError([Problem(str(path), None, "", message)]) from None


@dataclass(frozen=True, slots=True)
class Applied:
    """A config that came into force."""

    at_s: float
    """Unix time."""
    hash: str
    changes: tuple[str, ...]
    """Of the one before it, in words; none: it is the first."""


@dataclass(slots=True)
class ConfigState:
    """The config in force, where it came from, and how the last attempts to replace it went."""

    config: Config
    source: str
    loaded_at_s: float
    """Unix time at which the config in force was accepted."""
    applied: int = 0
    """Files that replaced the config in force since the start."""
    refused: int = 0
    """Files that were refused since the start."""
    last_error: ConfigError | None = None
    """Why the newest file is not in force; None where it is."""
    last_error_at_s: float = 0.0
    """Unix time at which `last_error` was found."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """What the command line sets over every file, by dotted field."""
    learned: Learned | None = None
    """What `balancer learn` is at; None: nobody learns."""
    learned_fields: Mapping[str, Any] = field(default_factory=dict)
    """What that sets over the file, by field."""
    started: Config = field(init=False)
    """The config that the process started with, which still holds for `config.RESTART_FIELDS`."""
    waiting_changes: list[str] = field(default_factory=list, init=False)
    """What a restart would take over, in words."""
    history: deque[Applied] = field(init=False)
    """The last configs in force, the oldest first."""

    def __post_init__(self) -> None:
        self.started = self.config
        self.history = deque([Applied(self.loaded_at_s, self.config.hash, ())], _MOST_KEPT)

    @property
    def hash(self) -> str:
        return self.history[-1].hash

    def accept(self, config: Config, now_s: float) -> bool:
        """Take note that the newest file is good; whether its config differs from that in force, and now is it."""
        self.last_error = None
        if config == self.config:
            return False
        new, set_fields = config.model_dump(mode="json"), config.model_dump(mode="json", exclude_defaults=True)
        changed = words_of(changes(self.config.model_dump(mode="json"), new, set_fields))
        self.history.append(Applied(now_s, config.hash, tuple(changed)))
        found = changes(self.started.model_dump(mode="json"), new, set_fields)
        self.waiting_changes = words_of([change for change in found if change.restart])
        self.config, self.loaded_at_s = config, now_s
        self.applied += 1
        return True

    def with_learned(self, config: Config) -> Config:
        """The config with what `balancer learn` has put in force, of which note is taken.

        Raises:
            ConfigError: its file is none of the learner's, or does not fit, or all of it waits for a restart.
        """
        found, learned, fields = with_learned(config, Path(self.source))
        check_live(self.started, found, self.source)
        self.learned, self.learned_fields = learned, fields
        return found

    def refuse(self, error: ConfigError, now_s: float) -> None:
        """Take note that the newest file is bad; the config in force stays."""
        self.last_error, self.last_error_at_s = error, now_s
        self.refused += 1

    @property
    def waiting_for_restart(self) -> list[str]:
        """Dotted fields whose values in the file are not in force before a restart."""
        return needs_restart(self.started, self.config)

    def as_json(self) -> dict[str, Any]:
        """The state as `/config` shows it; times are Unix times in seconds."""
        error = self.last_error
        return {
            "source": self.source,
            "hash": self.hash,
            "loaded_at_s": self.loaded_at_s,
            "applied": self.applied,
            "refused": self.refused,
            "newest_file_in_force": error is None,
            "last_error": None
            if error is None
            else {"at_s": self.last_error_at_s, "problems": [str(problem) for problem in error.problems]},
            "waiting_for_restart": self.waiting_for_restart,
            "overrides": {**self.overrides, **self.learned_fields},
            "config": self.config.model_dump(mode="json"),
        }
