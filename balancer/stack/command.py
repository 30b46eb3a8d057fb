"""`balancer up`: the whole stack on one machine."""

from pathlib import Path
from typing import Any

import click

from balancer.stack.up import UpOptions, run

_EPILOG = """\b
Examples:
  balancer up                                4 workers, requests to port 8080
  balancer up --workers 8 --policy prequal
  balancer up --workers 0 --llm 2            language models, for clients of OpenAI's API
  balancer up --config balancer.yaml         edit the file while it runs
  balancer load --model digits --rate 100    from another terminal

Ctrl-C stops everything; so does the end of any part, and the reason is shown.
"""

_PORT = click.IntRange(1, 65535)


@click.command(epilog=_EPILOG)
@click.option("--workers", type=click.IntRange(0, 64), default=4, show_default=True, help="Triton servers.")
@click.option(
    "--llm",
    "language_models",
    type=click.IntRange(0, 16),
    default=0,
    show_default=True,
    help="Servers of a small language model, for clients of OpenAI's API.",
)
@click.option("--policy", metavar="NAME", help="One of `balancer policies` [default: what the config says].")
@click.option("--port", type=_PORT, default=8080, show_default=True, help="For requests, gRPC and HTTP.")
@click.option("--host", default="127.0.0.1", show_default=True, help="To listen on; 0.0.0.0: for all.")
@click.option("--admin-port", type=_PORT, default=8090, show_default=True, help="Of the balancer; see its /ready.")
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Config file to follow; its addresses and workers give way to those of the stack. [default: one that is "
    "written for the purpose, and shown]",
)
@click.option("--processes", type=click.IntRange(1, 64), help="Balancer processes [default: what the config says].")
@click.option(
    "--models",
    "model_repositories",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    multiple=True,
    help="Model repository; repeatable [default: triton/models of this checkout].",
)
@click.option(
    "--model-control-mode",
    type=click.Choice(["none", "explicit"]),
    default="none",
    show_default=True,
    help="As tritonserver's. explicit: clients load and unload models, on all workers; none is loaded at the start.",
)
@click.option(
    "--load-model",
    "load_models",
    metavar="NAME",
    multiple=True,
    help="With --model-control-mode explicit: load it at the start; repeatable; *: all.",
)
@click.option(
    "--ingress-port",
    type=_PORT,
    help="Starts a NATS there, and an ingress that serves its topics; see docs/ingress.md.",
)
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out/up"),
    show_default=True,
    help="For logs, the list of workers, and the config file where none is given.",
)
def up(config_path: Path | None, **options: Any) -> None:
    """Start Envoy, the balancer, and Triton servers with their agents, and stop all of it together.

    Logs, the list of workers and the config file that is written go to out/up.
    """
    chosen = UpOptions(config=config_path, **options)
    if 0 <= chosen.port - chosen.admin_port < (chosen.processes or 1):
        message = (
            f"--port {chosen.port} and --admin-port {chosen.admin_port} are one port; name two (of several processes, "
            "each has an admin port)"
        )
        raise click.UsageError(message)
    if chosen.load_models and chosen.model_control_mode == "none":
        raise click.UsageError("--load-model needs --model-control-mode explicit; without, all models are loaded")
    run(chosen)
