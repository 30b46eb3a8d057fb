"""`python -m experiments.gpu_fidelity`: predict the online table and say how far off the predictions are."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.progress import track

from balancer.errors import OperatorError
from experiments.gpu_fidelity import errors, plots, report
from experiments.gpu_fidelity.errors import compare
from experiments.gpu_fidelity.setups import DEPLOYMENTS, Source, setups
from simulator.service import OFFLINE, ONLINE

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/fidelity"), show_default=True)
@click.option("--worth", is_flag=True, help="Also leave out each decision in turn, and write worth.md.")
@click.option("--docs", type=click.Path(path_type=Path), help="Also put the picture here.")
@click.option("--offline", type=_FILE, default=OFFLINE, help="What one client measured. [default: NVIDIA's table]")
@click.option("--online", type=_FILE, default=ONLINE, help="What many clients measured. [default: NVIDIA's table]")
@click.option("--deployments", type=_FILE, default=DEPLOYMENTS, help="How the servers were deployed.")
def main(out: Path, worth: bool, docs: Path | None, offline: Path, online: Path, deployments: Path) -> None:
    """Predict what 8 to 256 clients saw of Triton on real GPUs, from what one client saw.

    Writes gpu.md, gpu.json, gpu.png and gpu.svg. Tables of your own have the columns of simulator/data, and deployments
    the fields of experiments/gpu_fidelity/deployments.yaml.
    """
    console = Console()
    try:
        measured = setups(Source(offline, online, deployments))
    except OperatorError as error:
        raise click.ClickException(str(error)) from error
    comparisons = [compare(setup) for setup in track(measured, "Predicting", console=console)]
    out.mkdir(parents=True, exist_ok=True)
    tables = report.markdown(comparisons)
    (out / "gpu.md").write_text(tables)
    report.write_json(comparisons, out / "gpu.json")
    plots.scatter(comparisons, out / "gpu.png")
    plots.scatter(comparisons, out / "gpu.svg")
    if docs is not None:
        docs.mkdir(parents=True, exist_ok=True)
        plots.scatter(comparisons, docs / "gpu.png")
    console.print(tables, soft_wrap=True, markup=False, highlight=False)
    if worth:
        left_out = report.worth_table(errors.worth(measured))
        (out / "worth.md").write_text(left_out)
        console.print(left_out, soft_wrap=True, markup=False, highlight=False)
    console.print(f"Written to {out}")


if __name__ == "__main__":
    main()
