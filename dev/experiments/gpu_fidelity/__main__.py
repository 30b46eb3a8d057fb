"""`python -m dev.experiments.gpu_fidelity`: predict the online table and say how far off the predictions are."""

from pathlib import Path

import click
from rich.console import Console
from rich.progress import track

from balancer.errors import OperatorError
from dev.experiments.gpu_fidelity import report
from dev.experiments.gpu_fidelity.setups import DEPLOYMENTS, setups
from simulator.service import OFFLINE, ONLINE

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/fidelity"), show_default=True)
@click.option("--docs", type=click.Path(path_type=Path), help="Also put picture and CSV here.")
@click.option("--offline", type=_FILE, default=OFFLINE, help="What one client measured. [default: NVIDIA's table]")
@click.option("--online", type=_FILE, default=ONLINE, help="What many clients measured. [default: NVIDIA's table]")
@click.option("--deployments", type=_FILE, default=DEPLOYMENTS, help="How the servers were deployed.")
def main(out: Path, docs: Path | None, offline: Path, online: Path, deployments: Path) -> None:
    """Predict what 8 to 256 clients saw of Triton on real GPUs, from what one client saw.

    Writes gpu.md, gpu.csv and gpu.png. Tables of your own have the columns of simulator/data, and deployments
    the fields of dev/experiments/gpu_fidelity/deployments.yaml.
    """
    console = Console()
    try:
        measured = setups(offline, online, deployments)
    except OperatorError as error:
        raise click.ClickException(str(error)) from error
    comparisons = [report.compare(setup) for setup in track(measured, "Predicting", console=console)]
    out.mkdir(parents=True, exist_ok=True)
    tables = report.markdown(comparisons)
    (out / "gpu.md").write_text(tables)
    for folder in (out, docs) if docs is not None else (out,):
        report.draw(comparisons, folder / "gpu.png")
        (folder / "gpu.csv").write_text(report.as_csv(comparisons))
    console.print(tables, soft_wrap=True, markup=False, highlight=False)
    console.print(f"Written to {out}")


if __name__ == "__main__":
    main()
