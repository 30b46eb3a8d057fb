"""A run as a terminal shows it: one live line while it goes, tables when it is over."""

import time
from types import TracebackType
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from balancer.load.result import LoadResult, Summary, by_model, by_worker, summarise
from balancer.load.runner import Progress
from balancer.load.text import milliseconds, share

_PLAIN_LINE_EVERY_S = 5.0
_PLAIN_WIDTH = 120


def make_console() -> Console:
    """A console that is wide enough for the tables where it is a file or a pipe, whose width nobody knows."""
    console = Console()
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH)


class LiveLine:
    """Shows progress: a line that is redrawn on a terminal, a new line now and then elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._shown_s = time.monotonic()

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def show(self, progress: Progress, note: str = "") -> None:
        line = Text.assemble(
            (f"{note}  " if note else "", "bold"),
            f"{progress.rate_per_s:7,.0f}/s  p50 {milliseconds(progress.p50_s):>6} ms  ",
            f"p99 {milliseconds(progress.p99_s):>6} ms  in flight {progress.in_flight:>4}  ",
            (f"errors {progress.failed}", "bold red" if progress.failed else ""),
            f"  {max(progress.planned_s - progress.elapsed_s, 0):.0f} s left",
        )
        if self._live:
            self._live.update(line)
        elif time.monotonic() - self._shown_s >= _PLAIN_LINE_EVERY_S:
            self._shown_s = time.monotonic()
            self._console.print(line)


def result_tables(result: LoadResult) -> list[Table]:
    """A table of the whole and each model, and one of each worker where answers tell who served."""
    whole = summarise(result)
    models = by_model(result)
    table = _table("Latency from the scheduled start, milliseconds", "model")
    for name, part in models.items():
        table.add_row(name, *_cells(summarise(part)))
    if len(models) > 1:
        table.add_section()
        table.add_row("all", *_cells(whole), style="bold")
    if whole.errors:
        table.caption = "Errors: " + ", ".join(f"{name} {count:,}" for name, count in whole.errors.items())
        table.caption_style = "bold red"
    if not whole.by_worker:
        return [table]
    workers = _table("By the worker that answered", "worker")
    for name, part in by_worker(result).items():
        workers.add_row(name, *_cells(summarise(part)))
    return [table, workers]


def verdict_on_generator(summary: Summary) -> str:
    """A warning where the generator was late enough to colour the latencies; else empty."""
    if not summary.late_p99_s > max(0.002, 0.1 * summary.p99_s):
        return ""
    return (
        f"This generator itself was late (p50 {milliseconds(summary.late_p50_s)} ms, "
        f"p99 {milliseconds(summary.late_p99_s)} ms), and that counts in the latencies above: "
        "lower --rate, raise --max-in-flight, or run it on another machine."
    )


def _table(title: str, subject: str) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(subject, overflow="fold")
    for name in ("requests", "errors", "mean", "p50", "p95", "p99", "p99.9", "in time", "ok/s"):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _cells(summary: Summary) -> list[str]:
    times_s = (summary.mean_s, summary.p50_s, summary.p95_s, summary.p99_s, summary.p999_s)
    return [
        f"{summary.requests:,}",
        f"{sum(summary.errors.values()):,}",
        *(milliseconds(value) for value in times_s),
        share(summary.within_deadline),
        f"{summary.achieved_per_s:,.0f}",
    ]
