"""Log lines, as a collector of logs and as a person reads them."""

import asyncio
import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from balancer.config.log import LogSection
from balancer.server import logs


@pytest.fixture(autouse=True)
def root() -> Iterator[logging.Logger]:
    logger = logging.getLogger()
    handlers, level = list(logger.handlers), logger.level
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


def configured(section: LogSection, *, terminal: bool = False) -> io.StringIO:
    stream = io.StringIO()
    logs.configure(section, stream=stream, terminal=terminal)
    return stream


def test_json_lines() -> None:
    stream = configured(LogSection())
    logging.getLogger("balancer.test").warning("worker %s is gone", "a", extra={"worker": "a", "age_s": 0.5})
    logging.getLogger("balancer.test").debug("not this")
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry.pop("time"))
    assert entry == {
        "level": "WARNING",
        "logger": "balancer.test",
        "message": "worker a is gone",
        "worker": "a",
        "age_s": 0.5,
    }


def test_an_exception_stays_one_line() -> None:
    stream = configured(LogSection())
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("balancer.test").exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: no" in json.loads(line)["exc_info"]


@pytest.mark.parametrize(
    ("error", "shown"),
    [(asyncio.CancelledError(), False), (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"), False), (OSError(), True)],
)
def test_what_strangers_cause_in_grpc_fills_no_log(error: BaseException, shown: bool) -> None:
    stream = configured(LogSection())
    logging.getLogger("grpc._cython.cygrpc").error("of gRPC", exc_info=error)
    assert bool(stream.getvalue()) == shown


def test_console_on_a_terminal_shows_extras() -> None:
    stream = configured(LogSection(), terminal=True)
    logging.getLogger("balancer.test").info("config applied", extra={"policy": "wlpr"})
    assert "config applied policy=wlpr" in stream.getvalue()


def test_what_a_library_notes_on_every_record_is_not_shown() -> None:
    made = logging.getLogRecordFactory()

    def noting(*arguments: Any, **named: Any) -> logging.LogRecord:
        record = made(*arguments, **named)
        record._of_a_library = 1  # as Ray does
        return record

    logging.setLogRecordFactory(noting)
    try:
        for terminal in (True, False):
            stream = configured(LogSection(), terminal=terminal)
            logging.getLogger("balancer.test").info("config applied", extra={"policy": "wlpr"})
            assert "wlpr" in stream.getvalue()
            assert "of_a_library" not in stream.getvalue()
    finally:
        logging.setLogRecordFactory(made)


def test_configured_again_replaces() -> None:
    first = configured(LogSection())
    second = configured(LogSection(level="error", format="json"), terminal=True)
    logging.getLogger("balancer.test").warning("not this")
    logging.getLogger("balancer.test").error("this")
    assert first.getvalue() == ""
    assert json.loads(second.getvalue())["message"] == "this"


def test_decisions_are_sampled_by_number() -> None:
    assert not any(logs.DecisionLines(0.0).wants(number) for number in range(100))
    assert all(logs.DecisionLines(1.0).wants(number) for number in range(100))
    some = logs.DecisionLines(0.25)
    chosen = [number for number in range(10_000) if some.wants(number)]
    assert 2300 < len(chosen) < 2700
    assert chosen == [number for number in range(10_000) if logs.DecisionLines(0.25).wants(number)]


def test_a_decision_line() -> None:
    stream = configured(LogSection())
    logs.DecisionLines(1.0).write(
        number=7,
        request_id="r-1",
        triton_request_id="",
        model="digits",
        worker="a",
        policy="wlpr",
        propensity=0.5,
        fallbacks=("b",),
    )
    entry = json.loads(stream.getvalue())
    assert entry["logger"] == "balancer.decisions"
    assert (entry["number"], entry["request_id"], entry["worker"], entry["fallbacks"]) == (7, "r-1", "a", ["b"])
