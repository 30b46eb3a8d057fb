"""`balancer top`: the page of a balancer, in a terminal."""

import asyncio
import os
import select
import signal
import sys
from typing import Any

import click
from pydantic import ValidationError
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from balancer.cli.admin_client import AnswerError, Balancers, admin_options, balancers_of
from balancer.server.page.document import DOCUMENT, Number, PageDocument

_PERIOD_S = 1.0
_EVENTS = 5
_PIPE_COLUMNS = 160
_STYLES = {
    "ready": "green",
    "listed": "green",
    "draining": "yellow",
    "drained by hand": "yellow",
    "no report": "yellow",
}
_ALARM = "bold red"
_EPILOG = """\b
Examples:
  balancer top
  balancer top --balancer 10.0.0.5:8090 --model digits
  balancer top --once | grep silent          one table, to a pipe
"""


@click.command(epilog=_EPILOG)
@admin_options()
@click.option("--model", default="", help="Whose probabilities to show [default: the one with the most traffic].")
@click.option("--once", is_flag=True, help="Print it once, and end.")
def top(model: str, once: bool, **where: Any) -> None:
    """Show workers, traffic and events of a balancer, each second; Ctrl-C ends.

    It shows what the page at its listen.admin does; every process of a balancer has its own.
    """
    balancer = balancers_of(**where)
    console = Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS)
    if once:
        console.print(drawn(_document(balancer, model), sys.maxsize))
        return
    # Ctrl-C is how it ends. As an exception it could be lost where it cuts a request short; to be waited for as a
    # signal, all threads would have to block it, those of libraries too.
    pressed, note = os.pipe()
    signal.signal(signal.SIGINT, lambda *_: os.write(note, b"."))
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            live.update(_now(balancer, model, console.height), refresh=True)
            if select.select([pressed], [], [], _PERIOD_S)[0]:
                return


def _now(balancer: Balancers, model: str, lines: int) -> RenderableType:
    """As it is now, or why that is not known: a balancer that restarts answers again."""
    try:
        return drawn(_document(balancer, model), lines)
    except AnswerError as error:
        return Text(str(error), style=_ALARM)


def _document(balancer: Balancers, model: str) -> PageDocument:
    try:
        return DOCUMENT.validate_json(asyncio.run(balancer.get("/page.json", {"model": model} if model else None)))
    except ValidationError as error:
        raise AnswerError(f"{balancer.addresses[0]}: /page.json is not that of a balancer of this version") from error


def drawn(shown: PageDocument, lines: int) -> RenderableType:
    parts = [_head(shown), *_notices(shown), _workers(shown, max(lines - 12 - _EVENTS - len(shown.recent.parts), 3))]
    if shown.recent.parts:
        parts.append(_traffic(shown))
    parts += [_event(shown, at) for at in range(min(len(shown.events), _EVENTS))]
    return Group(*parts)


def _head(shown: PageDocument) -> RenderableType:
    process, recent = shown.process, shown.recent
    decides = "Envoy" if process.frontend == "native" and not process.not_deciding_because else "the balancer"
    states = ", ".join(f"{count} {state}" for state, count in shown.states.items()) or "none"
    several = f"   process {process.number} of {process.processes}" if process.processes > 1 else ""
    traffic = (
        f"{recent.rate_per_s:.1f} requests/s   p50 {_time(recent.p50_s)}   p99 {_time(recent.p99_s)}   "
        f"errors {recent.errors}   without a policy {recent.without_pick}"
        if recent.picked + recent.without_pick
        else f"no requests in the last {_time(recent.window_s)}"
    )
    learning = f"learning: {process.learning}\n" if process.learning else ""
    return _text(
        f"policy {process.decides}; decided by {decides}   config {shown.config.hash}{several}\n"
        f"{learning}"
        f"{traffic}   workers: {states}"
    )


def _notices(shown: PageDocument) -> list[RenderableType]:
    found = [f"not ready: {shown.process.not_ready}"] if shown.process.not_ready else []
    found += [f"config refused, the last good one stays: {problem}" for problem in shown.config.problems]
    found += [f"waits for a restart: {change}" for change in shown.config.waiting]
    for policy, guard in shown.canary.get("guards", {}).items():
        if guard.get("fallen_back"):
            found.append(f"guard: {policy} is out of service, a baseline decides: {guard.get('why')}")
    if rollout := shown.canary.get("rollout"):
        found.append(f"rollout to {rollout.get('to')}: {rollout.get('state')}, {rollout.get('why') or 'goes on'}")
    return [_text(words, _ALARM) for words in found]


def _workers(shown: PageDocument, most: int) -> Table:
    probability = {each["worker"]: each["probability"] for each in shown.why.get("workers", ())}
    languages = any(worker.waiting_tokens or worker.memory_share is not None for worker in shown.workers)
    of_languages = ("prompt tokens", "memory") if languages else ()
    table = _table("worker", "state", "queue", "in flight", *of_languages, "wait", "answers/s", "p50", "p99", "errors")
    table.add_column("report age", justify="right")
    table.add_column(f"gets {_plain(str(shown.why.get('model', '')))}", justify="right")
    table.add_column("why none")
    listed = sorted(shown.workers, key=lambda worker: worker.state in ("ready", "listed"))
    for worker in listed[:most]:
        gets = probability.get(worker.name)
        table.add_row(
            _text(worker.name),
            _text(worker.state, _STYLES.get(worker.state, _ALARM)),
            _number(worker.pending),
            _number(worker.in_flight),
            *((_number(worker.waiting_tokens), _share(worker.memory_share)) if languages else ()),
            _time(worker.backlog_s),
            f"{worker.answers_per_s:.1f}",
            _time(worker.p50_s),
            _time(worker.p99_s),
            str(worker.errors),
            _time(worker.report_age_s),
            "-" if gets is None else f"{gets:.1%}",
            _text("; ".join(worker.why_not)),
        )
    more = len(listed) - min(most, len(listed)) + shown.workers_left_out
    if more:
        table.add_row(f"and {more} more")
    return table


def _traffic(shown: PageDocument) -> Table:
    table = _table("model", "policy", "requests/s", "p50", "p99", "errors")
    for row in shown.recent.parts:
        rate, errors = f"{row.rate_per_s:.1f}", str(row.errors)
        policy = _text(row.policy) if row.policy else Text("none", "yellow")
        table.add_row(_text(row.model), policy, rate, _time(row.p50_s), _time(row.p99_s), errors)
    return table


def _event(shown: PageDocument, at: int) -> Text:
    event = shown.events[at]
    times = f" ({event.count} times)" if event.count > 1 else ""
    style = {"warning": "yellow", "error": _ALARM}.get(event.level, "")
    return _text(f"{_time(max(shown.at_s - event.last_s, 1.0)):>7} ago  {event.kind}: {event.words}{times}", style)


def _table(*titles: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in titles:
        words = title in ("worker", "state", "model", "policy")
        table.add_column(title, justify="left" if words else "right", no_wrap=title != "model")
    return table


def _text(words: str, style: str = "") -> Text:
    return Text(_plain(words), style)


def _plain(words: str) -> str:
    """Names come from outside: a terminal gets nothing of them that it would obey."""
    return "".join(each if each.isprintable() or each == "\n" else "\N{REPLACEMENT CHARACTER}" for each in words)


def _number(value: Number) -> str:
    return "-" if value is None else f"{value:.4g}"


def _share(value: Number) -> str:
    return "-" if value is None else f"{value:.0%}"


def _time(seconds: Number) -> str:
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.0f} min"
