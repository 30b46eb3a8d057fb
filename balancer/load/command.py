"""`balancer load`: drive a listener and tell what it took."""

from __future__ import annotations

import asyncio
import json
import math
import pathlib
import signal
import sys
import time
from types import TracebackType
from typing import Any, Self

import click
import numpy as np
import uvloop
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from balancer.load import arrivals
from balancer.load.arrivals import Bursts, FloatArray
from balancer.load.result import LoadResult, Summary, by_model, by_worker, milliseconds, share, summarise
from balancer.load.runner import DriveOptions, Progress, drive
from balancer.load.sender import LoadError
from balancer.load.trace import Trace, read_trace
from balancer.load.workload import LoadWorkload, ModelMix, RowSizes, mixed, streams

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


_CLOSED_LOOP_REQUESTS = 4096
_POSITIVE = click.FloatRange(min=0, min_open=True)

HELP = """Drive a listener with inference requests and show latency, errors and rate.

Requests are sent at their scheduled time whatever became of earlier ones, and latency counts from that time.
Inputs are made from each model's metadata. The same seed gives the same arrivals, models and rows.

\b
  balancer load --model emulated_tft --rate 200 --duration 20
  balancer load --model a:3@50 --model b:1@200 --rate 100 --arrivals bursty
  balancer load --model a --trace azure_llm_2023_conv.csv --rate 50 --duration 60
  balancer load --model a --arrivals closed --concurrency 16
"""


@click.command("load", help=HELP)
@click.option("--url", default="127.0.0.1:8080", show_default=True, help="Listener, host:port.")
@click.option("--protocol", type=click.Choice(["grpc", "http"]), default="grpc", show_default=True)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME[:weight][@deadline_ms]",
    help="Model to send to; repeat for a mix by weight. May be left out for a trace that names models.",
)
@click.option("--rate", type=_POSITIVE, help="Mean requests per second [default: 100, or the trace's own].")
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=pathlib.Path),
    help="CSV with a column time_s, time or TIMESTAMP, and if wanted model, rows (or size) and key; "
    "--rate rescales it and keeps its shape.",
)
@click.option(
    "--arrivals",
    "process",
    type=click.Choice(["poisson", "uniform", "bursty", "closed"]),
    default="poisson",
    show_default=True,
    help="bursty: Markov-modulated Poisson; closed: --concurrency requests at a time, each answer brings the next.",
)
@click.option(
    "--burst-factor", type=click.FloatRange(min=1), default=4.0, show_default=True, help="Rate over the calm."
)
@click.option("--burst-s", type=_POSITIVE, default=1.0, show_default=True, help="Mean length of a burst.")
@click.option("--calm-s", type=_POSITIVE, default=3.0, show_default=True, help="Mean time between bursts.")
@click.option("--concurrency", type=click.IntRange(min=1), default=8, show_default=True, help="For --arrivals closed.")
@click.option("--duration", type=_POSITIVE, help="Seconds to send [default: 10, or the whole trace].")
@click.option(
    "--warmup", type=click.FloatRange(min=0), default=0.0, show_default=True, help="Seconds before, not counted."
)
@click.option("--rows", default="1", show_default=True, help="Batch size: N, LOW-HIGH, or N:weight,N:weight,...")
@click.option(
    "--deadline-ms", type=_POSITIVE, help="Deadline of models that name none; only counted unless --send-deadline."
)
@click.option("--send-deadline", is_flag=True, help="Give requests up at their deadline; gRPC tells the server.")
@click.option("--timeout-s", type=_POSITIVE, default=30.0, show_default=True, help="Give requests up after this.")
@click.option("--key-header", default="x-routing-key", show_default=True, help="Carries the key that a trace names.")
@click.option("--connections", type=click.IntRange(min=1), default=4, show_default=True, help="gRPC connections.")
@click.option("--max-in-flight", type=click.IntRange(min=1), default=2048, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=pathlib.Path), help="Write numbers there."
)
def load(**given: Any) -> None:
    """See HELP."""
    console = make_console()
    try:
        workload, options = plan(given)
        with LiveLine(console) as line:
            result = uvloop.run(_run(given, workload, options, line))
    except (ValueError, LoadError) as error:
        raise click.ClickException(str(error)) from error
    measured = result.between(given["warmup"], max(result.duration_s, given["warmup"]))
    summary = summarise(measured)
    for table in result_tables(measured):
        console.print(table)
    if options.concurrency == 0 and (warning := verdict_on_generator(summary)):
        console.print(warning, style="yellow")
    if given["json_path"]:
        given["json_path"].write_text(json.dumps(as_json(measured, given), indent=2) + "\n")
    sys.exit(1 if summary.errors or not summary.ok else 0)


def plan(given: dict[str, Any]) -> tuple[LoadWorkload, DriveOptions]:
    """The workload and the way to send it that the command's options ask for; warm-up included.

    Raises:
        ValueError: naming the option, its value and the remedy.
    """
    deadline_s = given["deadline_ms"] / 1e3 if given["deadline_ms"] else math.inf
    mix = [ModelMix.parse(text, deadline_s) for text in given["models"]]
    rows = RowSizes.parse(given["rows"])
    if given["send_deadline"] and math.isinf(deadline_s) and all(math.isinf(model.deadline_s) for model in mix):
        raise ValueError("--send-deadline is given, but no deadline: add --deadline-ms or NAME@deadline_ms")
    closed = given["process"] == "closed"
    if closed and (given["rate"] or given["trace"]):
        raise ValueError("--arrivals closed sends on answers: leave --rate and --trace off")
    length_s = (given["duration"] or 10.0) + given["warmup"]
    options = DriveOptions(
        protocol=given["protocol"],
        connections=given["connections"],
        max_in_flight=given["max_in_flight"],
        timeout_s=given["timeout_s"],
        send_deadline=given["send_deadline"],
        key_header=given["key_header"],
        concurrency=given["concurrency"] if closed else 0,
        duration_s=length_s if closed else 0.0,
    )
    times, models, sizes = streams(given["seed"], 3)
    if given["trace"]:
        workload = from_trace(
            read_trace(given["trace"]), mix, rows, deadline_s, given["rate"], generators=(models, sizes)
        )
        return workload.until(length_s if given["duration"] else math.inf), options
    if not mix:
        raise ValueError("no --model is given: name at least one, as in --model digits")
    time_s = np.zeros(_CLOSED_LOOP_REQUESTS) if closed else _times(given, length_s, times)
    return mixed(time_s, mix, rows, models, sizes), options


def _times(given: dict[str, Any], length_s: float, generator: np.random.Generator) -> FloatArray:
    rate_per_s = given["rate"] or 100.0
    if given["process"] == "uniform":
        return arrivals.uniform(rate_per_s, length_s)
    if given["process"] == "poisson":
        return arrivals.poisson(rate_per_s, length_s, generator)
    bursts = Bursts(given["burst_factor"], given["burst_s"], given["calm_s"])
    return arrivals.bursty(rate_per_s, length_s, bursts, generator)


def from_trace(
    trace: Trace,
    mix: list[ModelMix],
    rows: RowSizes,
    deadline_s: float,
    rate_per_s: float | None,
    *,
    generators: tuple[np.random.Generator, np.random.Generator],
) -> LoadWorkload:
    """A trace's arrivals, models, rows and keys; what it does not tell comes from the mix and the row sizes.

    Raises:
        ValueError: where neither the trace nor the mix names a model, or both do and disagree.
    """
    time_s = arrivals.rescaled(trace.time_s, rate_per_s) if rate_per_s else trace.time_s
    if trace.models:
        named = {model.name: model for model in mix}
        names = tuple(dict.fromkeys(trace.models))
        if strange := [name for name in names if named and name not in named]:
            raise ValueError(
                f"the trace sends to {', '.join(strange)}, which no --model names: add it, or leave all off"
            )
        mix = [named.get(name, ModelMix(name, 1.0, deadline_s)) for name in names]
    workload = mixed(time_s, mix, rows, *generators)
    if trace.models:
        position = {model.name: i for i, model in enumerate(mix)}
        model = np.array([position[name] for name in trace.models], dtype=np.int64)
        deadlines_s = np.array([one.deadline_s for one in mix])[model]
        workload = LoadWorkload(workload.models, time_s, model, workload.rows, deadlines_s)
    own_rows = trace.rows if len(trace.rows) else workload.rows
    return LoadWorkload(workload.models, time_s, workload.model, own_rows, workload.deadline_s, trace.keys)


async def _run(given: dict[str, Any], workload: LoadWorkload, options: DriveOptions, line: LiveLine) -> LoadResult:
    stop = asyncio.Event()
    # The first Ctrl-C stops sending, and what came back is shown; the second ends the program.
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        stop.set()

    loop.add_signal_handler(signal.SIGINT, interrupted)
    return await drive(given["url"], workload, options, on_progress=line.show, stop=stop, seed=given["seed"])


def as_json(result: LoadResult, given: dict[str, Any]) -> dict[str, Any]:
    """What `--json` writes: the options, and a summary of the whole, of each model and of each worker."""
    return {
        "options": {name: str(value) if isinstance(value, pathlib.Path) else value for name, value in given.items()},
        "total": summarise(result).as_json(),
        "models": {name: summarise(part).as_json() for name, part in by_model(result).items()},
        "workers": {name: summarise(part).as_json() for name, part in by_worker(result).items()},
    }
