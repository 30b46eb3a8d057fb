"""`balancer profile`: how long do a Triton's models take, by batch size?"""

import contextlib
from pathlib import Path

import click
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from balancer.config.profile_file import ModelProfile, dump_profile
from balancer.files.schema import join_address, split_address
from balancer.profile.measure import Profiler, Sweep

_GRPC_PORT = 8001
_DEFAULTS = Sweep()

_EPILOG = """\b
Examples:
  balancer profile localhost --model digits --device A100 --out a100.yaml
  balancer profile 10.0.0.5:8001 --model a --model b --batch 1,4,16 --device T4 --out t4.yaml

Then name the file in the config, so that workers of that device are known from their first request:

\b
  estimators:
    profiles: [a100.yaml, t4.yaml]

The server should have nothing else to do meanwhile.
"""


def _sizes(_: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """`1,2,4` as numbers; empty as none."""
    parts = text.split(",") if text else []
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        rule = "is no list of batch sizes; write whole numbers from 1 on, such as 1,2,4,8"
        raise click.BadParameter(f"{text!r} {rule}", param=parameter)
    return tuple(map(int, parts))


def _with_port(_: click.Context, parameter: click.Parameter, text: str) -> str:
    try:
        has_port = ":" in text.rpartition("]")[2]
        return join_address(*split_address(text if has_port else f"{text}:{_GRPC_PORT}"))
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}", param=parameter) from error


@click.command(epilog=_EPILOG)
@click.argument("address", metavar="HOST[:PORT]", callback=_with_port)
@click.option("--model", "models", metavar="NAME", multiple=True, required=True, help="Repeat for several.")
@click.option(
    "--device", metavar="KIND", required=True, help="The server's device kind, as workers have it, such as A100."
)
@click.option("--out", type=click.Path(dir_okay=False, writable=True, path_type=Path), required=True, help="The file.")
@click.option(
    "--batch",
    "batches",
    default="",
    callback=_sizes,
    metavar="N,N,...",
    help="Batch sizes [default: powers of two up to the model's largest batch, and that].",
)
@click.option(
    "--executions",
    type=click.IntRange(min=1),
    default=_DEFAULTS.executions,
    show_default=True,
    help="Measured of each batch size, at most.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=_DEFAULTS.seconds,
    show_default=True,
    help="Spent on each batch size, at most.",
)
@click.option(
    "--warm-up",
    type=click.IntRange(min=0),
    default=_DEFAULTS.warm_up,
    show_default=True,
    help="Executions of each batch size before those.",
)
def profile(
    address: str,
    models: tuple[str, ...],
    device: str,
    out: Path,
    batches: tuple[int, ...],
    executions: int,
    seconds: float,
    warm_up: int,
) -> None:
    """Measure the Triton at HOST (gRPC port, 8001 if none is given) and write a profile file.

    Sends requests one at a time, of each batch size in turn, with inputs made from the model's metadata, and reads what
    the server's statistics say of each execution. The simulator and the balancer's estimators read the file.
    """
    if not out.parent.is_dir():
        raise click.UsageError(f"--out {out}: the folder {out.parent} does not exist; make it, or name another")
    console = Console()
    status = console.status(f"measuring {address}")
    sweep = Sweep(batches, executions, seconds, warm_up)
    profiler = Profiler(address, sweep, lambda model, point: status.update(f"{model}: {point.rows} rows done"))
    with contextlib.closing(profiler), status:
        measured = profiler.profile(device, tuple(dict.fromkeys(models)))
    out.write_text(dump_profile(measured))
    for model in measured.models:
        console.print(_table(model, device))
    if profiler.shared:
        names = ", ".join(sorted(profiler.shared))
        console.print(
            f"Others sent to {names} meanwhile: times may be too long. Measure an idle server.", style="yellow"
        )
    console.print(f"Written: {out}", soft_wrap=True)


def _table(model: ModelProfile, device: str) -> Table:
    fixed_s, per_row_s = model.affine()
    line_s = [fixed_s + per_row_s * point.rows for point in model.points]
    off = max(abs(np.divide(line_s, [point.mean_s for point in model.points]) - 1))
    table = Table(
        title=f"{model.model}, version {model.version}, on {device}",
        caption=f"Balancer's line: {fixed_s * 1e3:.3g} ms + {per_row_s * 1e3:.3g} ms a row, at most {off:.0%} off",
        box=SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("rows", "executions", "mean ms", "std ms", "input ms", "rows/s"):
        table.add_column(heading, justify="right")
    for point in model.points:
        times_s = (point.mean_s, point.std_s, point.input_s)
        milliseconds = ["-" if time_s is None else f"{time_s * 1e3:.3g}" for time_s in times_s]
        table.add_row(str(point.rows), str(point.executions), *milliseconds, f"{point.rows / point.mean_s:,.0f}")
    return table
