"""Structured logs: one JSON object a line on stderr, or readable lines where that is a terminal."""

import asyncio
import logging
import sys
from datetime import UTC, datetime
from typing import Literal, TextIO

from pythonjsonlogger.json import JsonFormatter
from rich.console import Console
from rich.logging import RichHandler

from balancer.config.log import LogSection
from policies.hashing import mix, unit

Reason = Literal["picked", "unknown_model", "no_worker", "shed", "per_server"]

_HANDLER = "balancer"
_STANDARD = frozenset(vars(logging.makeLogRecord({})))
_decisions = logging.getLogger("balancer.decisions")


class _Json(JsonFormatter):
    """Fields: time (RFC 3339, UTC), level, logger, message, then what `extra` gave, then `exc_info`."""

    def __init__(self) -> None:
        super().__init__(
            "{asctime}{levelname}{name}{message}",
            style="{",
            rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
        )

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Readable(logging.Formatter):
    """The message, then what `extra` gave as `name=value`."""

    def format(self, record: logging.LogRecord) -> str:
        # What begins with a line is a library's own, as Ray's of every record once it is imported.
        extras = {
            name: value for name, value in vars(record).items() if name not in _STANDARD and not name.startswith("_")
        }
        extras.pop("message", None)
        return " ".join([super().format(record), *(f"{name}={value}" for name, value in extras.items())])


def configure(section: LogSection, *, stream: TextIO | None = None, terminal: bool | None = None) -> None:
    """Send the logs of all loggers to `stream` (stderr) as the config says; may be called again when that changes.

    `terminal` says whether the stream is one, where it cannot be asked.
    """
    stream = stream if stream is not None else sys.stderr
    terminal = stream.isatty() if terminal is None else terminal
    handler: logging.Handler
    if section.format == "console" or (section.format == "auto" and terminal):
        handler = RichHandler(console=Console(file=stream), show_path=False, log_time_format="%H:%M:%S")
        handler.setFormatter(_Readable("%(message)s"))
    else:
        handler = logging.StreamHandler(stream)
        handler.setFormatter(_Json())
    root = logging.getLogger()
    for old in [each for each in root.handlers if each.name == _HANDLER]:
        root.removeHandler(old)
        old.close()
    handler.set_name(_HANDLER)
    root.addHandler(handler)
    root.setLevel(section.level.upper())
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_ours)


def _is_ours(record: logging.LogRecord) -> bool:
    """False for what strangers cause as often as they like and gRPC calls an error: the other end of a stream leaves,
    as agents, Envoys and clients do; a header is not UTF-8, which a call gets all the same."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError | UnicodeDecodeError))


class DecisionLines:
    """One line for each of a share of the decisions, at level info of logger `balancer.decisions`: for people.

    What a decision rested on is in the decision log (`balancer.server.decision_log`), for programs.
    The share may be set at any time. The caller asks `wants` first, which costs next to nothing where the share is 0.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        """0 (none) to 1 (all)."""

    def wants(self, number: int) -> bool:
        """Whether to log the decision on the router's request `number`; equal numbers get equal answers."""
        return self.share > 0 and (self.share >= 1 or unit(mix(number)) < self.share)

    def write(
        self,
        *,
        number: int | None,
        request_id: str,
        triton_request_id: str,
        model: str,
        worker: str,
        policy: str,
        propensity: float,
        fallbacks: tuple[str, ...] = (),
        reason: Reason = "picked",
    ) -> None:
        """Log one decision; `worker` is empty where there was none, for `reason`. `number` as in the decision log."""
        _decisions.info(
            "decision",
            extra={
                "number": number,
                "request_id": request_id,
                "triton_request_id": triton_request_id,
                "model": model,
                "worker": worker,
                "policy": policy,
                "propensity": propensity,
                "fallbacks": list(fallbacks),
                "reason": reason,
            },
        )
