"""`balancer agent`: beside a Triton."""

import asyncio
import shlex
import signal
from pathlib import Path
from typing import Any

import click
import uvloop

from balancer.agent.agent import MAX_REPORT_HZ, MIN_REPORT_HZ, AgentOptions, run_agent
from balancer.cli.tls_options import taken_tls, tls_options
from balancer.config.log import LogSection
from balancer.errors import OperatorError
from balancer.reports.control import MAX_TIMEOUT_S, default_path
from balancer.reports.control import drain as ask_to_drain
from balancer.server import malloc_trim as heap
from balancer.server.logs import configure

OPTIONS = "BALANCER_AGENT_OPTIONS"
"""The variable with the options of agents that are no command."""
_OF_THE_PROCESS = ("control", "log_level")
_DEFAULTS = AgentOptions(worker="any", balancers=("127.0.0.1:9102",))

_EPILOG = """\b
Examples:
  balancer agent --worker triton-0 --balancer 10.0.0.5:9102
  balancer agent --worker "$POD_NAME" --balancer balancer-headless:9102 --report-hz 100
  balancer agent --worker llm-0 --balancer 10.0.0.5:9102 --openai 127.0.0.1:8000
  balancer agent drain --timeout 60     a pre-stop hook: nothing new, and wait for what there is

A balancer of several processes has a port for each, listen.reports and up: name them all. A name that stands for
several addresses, as that of a headless service does, stands for all of them. Neither a missing Triton nor a missing
balancer ends the agent. Ctrl-C or SIGTERM does.
"""
_DRAIN_EPILOG = """\b
Example, of a pod's container:
  lifecycle: {preStop: {exec: {command: [balancer, agent, drain, --timeout, "60"]}}}

The worker drains until its Triton, or the agent, starts anew.
"""


_control = click.option(
    "--control",
    metavar="PATH",
    type=click.Path(path_type=Path),
    default=default_path,
    help=f"Socket for `balancer agent drain`, for this user only; empty: none [default: {default_path()}].",
)


@click.group(epilog=_EPILOG, invoke_without_command=True, subcommand_metavar="[drain]")
@click.option("--worker", metavar="NAME", help="This worker's name, as discovery lists it.  [required]")
@click.option(
    "--balancer",
    "balancers",
    metavar="ADDRESS",
    multiple=True,
    help="Where a balancer takes reports: host:port or unix:/path; repeat for several.  [required]",
)
@click.option("--triton-grpc", metavar="HOST:PORT", default=_DEFAULTS.triton_grpc, show_default=True)
@click.option("--triton-metrics", metavar="HOST:PORT", default=_DEFAULTS.triton_metrics, show_default=True)
@click.option(
    "--triton-http",
    metavar="HOST:PORT",
    default=_DEFAULTS.triton_http,
    show_default=True,
    help="Closes first when Triton stops, so it is watched; empty: a stop is noticed later.",
)
@click.option(
    "--openai",
    metavar="HOST:PORT",
    default="",
    help="A server of OpenAI's API to read in place of a Triton, as vLLM, SGLang or llama-server (with --metrics).",
)
@click.option(
    "--openai-key-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The key that this server asks for (vLLM: --api-key).",
)
@click.option(
    "--report-hz",
    type=click.FloatRange(MIN_REPORT_HZ, MAX_REPORT_HZ),
    default=_DEFAULTS.report_hz,
    show_default=True,
    help="Reports a second, while requests flow.",
)
@click.option("--device", default="", help="Device kind, such as A100 [default: as NVML says].")
@click.option("--memory-bytes", type=click.IntRange(min=0), default=0, help="Device memory [default: as NVML says].")
@tls_options("reports travel")
@tls_options("its gRPC is asked", "--triton-tls", "Triton's certificate", "Triton asks")
@tls_options("it is asked", "--openai-tls", "the certificate of OpenAI's server", "it asks")
@_control
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
@click.pass_context
def agent(context: click.Context, /, control: Path, log_level: str, **options: Any) -> None:
    """Read the Triton beside it, 20 to 100 times a second while requests flow, and report to every balancer.

    Reports say what is ready, queued and executing, how long batches take, and how the device fares.
    """
    if context.invoked_subcommand is not None:
        return
    if options["worker"] is None or not options["balancers"]:
        raise click.UsageError("give --worker and --balancer: on whom to report, and to whom")
    configure(LogSection.model_validate({"level": log_level}))
    uvloop.run(_run(options_of(options, control)))


def options_of(given: dict[str, Any], control: Path) -> AgentOptions:
    """What the command's options amount to; UsageError where they do not go together."""
    options = dict(given)
    tls, triton_tls, openai_tls = (taken_tls(options, prefix) for prefix in ("--tls", "--triton-tls", "--openai-tls"))
    path = control if control.name else None
    return AgentOptions(**options, tls=tls, triton_tls=triton_tls, openai_tls=openai_tls, control=path)


def options_in(text: str, worker: str) -> AgentOptions:
    """Those that the environment has for the agent of a worker, in words as on the command line.

    Raises:
        OperatorError: they do not fit.
    """
    try:
        with agent.make_context("agent", ["--worker", worker, *shlex.split(text)]) as context:
            given = {name: value for name, value in context.params.items() if name not in _OF_THE_PROCESS}
            if not given["balancers"]:
                raise ValueError("it has no --balancer HOST:PORT, to whom to report")
            return options_of(given, Path())
    except (click.ClickException, ValueError) as error:
        says = error.format_message() if isinstance(error, click.ClickException) else str(error)
        raise OperatorError(f"{OPTIONS}={text!r}: {says}") from error


@agent.command(epilog=_DRAIN_EPILOG)
@_control
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(0.0, MAX_TIMEOUT_S),
    default=30.0,
    show_default=True,
    help="Give up after that.",
)
def drain(control: Path, timeout_s: float) -> None:
    """Before a Triton stops: have its agent tell the balancers, and wait until nothing is left to do.

    Ends with 0 once every connected balancer has acknowledged that this worker gets nothing new, and Triton is idle.
    Else with 1, and says why.
    """
    if why := asyncio.run(ask_to_drain(control, timeout_s)):
        raise click.ClickException(why)
    click.echo("drained: every connected balancer knows, and nothing is left at this worker's Triton")


async def _run(options: AgentOptions) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    heap.settle()
    await run_agent(options, stop)
