"""`balancer agent`: beside a Triton."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import click
import uvloop

from balancer.config_sections import LogSection
from balancer.logs import configure
from balancer.telemetry.agent import MAX_REPORT_HZ, MIN_REPORT_HZ, AgentOptions, run_agent
from balancer.telemetry.streams import BalancerTls

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_DEFAULTS = AgentOptions(worker="any", balancers=("127.0.0.1:9102",))

_EPILOG = """\b
Examples:
  balancer agent --worker triton-0 --balancer 10.0.0.5:9102
  balancer agent --worker "$POD_NAME" --balancer balancer-headless:9102 --report-hz 100

A balancer of several processes has a port for each, listen.reports and up: name them all. A name that stands for
several addresses, as that of a headless service does, stands for all of them. Neither a missing Triton nor a missing
balancer ends the agent. Ctrl-C or SIGTERM does.
"""


@click.command(epilog=_EPILOG)
@click.option("--worker", metavar="NAME", required=True, help="This worker's name, as discovery lists it.")
@click.option(
    "--balancer",
    "balancers",
    metavar="HOST:PORT",
    required=True,
    multiple=True,
    help="Where a balancer takes reports; repeat for several.",
)
@click.option("--triton-grpc", metavar="HOST:PORT", default=_DEFAULTS.triton_grpc, show_default=True)
@click.option("--triton-metrics", metavar="HOST:PORT", default=_DEFAULTS.triton_metrics, show_default=True)
@click.option(
    "--report-hz",
    type=click.FloatRange(MIN_REPORT_HZ, MAX_REPORT_HZ),
    default=_DEFAULTS.report_hz,
    show_default=True,
    help="Reports a second.",
)
@click.option("--device", default="", help="Device kind, such as A100 [default: as NVML says].")
@click.option("--memory-bytes", type=click.IntRange(min=0), default=0, help="Device memory [default: as NVML says].")
@click.option("--tls-ca", type=_FILE, help="What signed the balancers' certificates; given, reports travel by TLS.")
@click.option("--tls-name", metavar="NAME", help="Name in the balancers' certificates; with --tls-ca.")
@click.option("--tls-cert", type=_FILE, help="Certificate to show, where the balancers ask for one.")
@click.option("--tls-key", type=_FILE, help="Its private key.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def agent(
    worker: str,
    balancers: tuple[str, ...],
    triton_grpc: str,
    triton_metrics: str,
    report_hz: float,
    device: str,
    memory_bytes: int,
    tls_ca: Path | None,
    tls_name: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    log_level: str,
) -> None:
    """Read the Triton beside it 20 to 100 times a second, and report to every balancer.

    Reports say what is ready, queued and executing, how long batches take, and how the device fares.
    """
    options = AgentOptions(
        worker=worker,
        balancers=balancers,
        triton_grpc=triton_grpc,
        triton_metrics=triton_metrics,
        report_hz=report_hz,
        device=device,
        memory_bytes=memory_bytes,
        tls=_tls(tls_ca, tls_name, tls_cert, tls_key),
    )
    configure(LogSection.model_validate({"level": log_level}))
    uvloop.run(_run(options))


def _tls(ca: Path | None, name: str | None, certificate: Path | None, key: Path | None) -> BalancerTls | None:
    if (ca is None) != (name is None):
        raise click.UsageError("--tls-ca and --tls-name go together; give both, or neither for plain text")
    if (certificate is None) != (key is None):
        raise click.UsageError("--tls-cert and --tls-key go together; give both or neither")
    if ca is None or name is None:
        if certificate is not None:
            raise click.UsageError("--tls-cert needs --tls-ca and --tls-name")
        return None
    return BalancerTls(ca, name, certificate, key)


async def _run(options: AgentOptions) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await run_agent(options, stop)
