"""`balancer relay`: between the agents of a rack and all balancers."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import grpc
import uvloop
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector as Scraped

from balancer.balancer_tls import BalancerTls, credentials
from balancer.cli.metrics_page import serve_metrics
from balancer.cli.tls_options import FILE, taken_tls, tls_options
from balancer.config.listen import WORKER, ReportsListenerTls
from balancer.config.log import LogSection
from balancer.reports.addresses import check_targets
from balancer.reports.collector import OWN_SERVER_OPTIONS, SERVER_OPTIONS
from balancer.reports.relaying import Relay
from balancer.server import malloc_trim as heap
from balancer.server.logs import configure
from balancer.server.metrics.scraped import counter, gauge
from balancer.server.security.certificates import Certificates
from balancer.server.security.gatekeeper import may_report
from balancer.server.security.listeners import LIMITS, bind

_EPILOG = """\b
Examples:
  balancer relay --listen 0.0.0.0:9102 --balancer balancer-headless:9102
  balancer agent --worker "$POD_NAME" --balancer relay-of-this-rack:9102

To its agents it is a balancer. Of each worker it sends on the newest report, as often as a balancer takes one, on one
stream a balancer. An agent may name two relays: one that is left suffices. Balancers behind relays tell each other of
their picks (peers.addresses), which no relay passes on. Ctrl-C or SIGTERM ends it.
"""
_MOST_HZ = 100.0
_GRACE_S = 0.5


@click.command(epilog=_EPILOG)
@click.option(
    "--listen",
    metavar="ADDRESS",
    default="127.0.0.1:9102",
    show_default=True,
    help="Where agents report: host:port or unix:/path.",
)
@click.option(
    "--balancer",
    "balancers",
    metavar="ADDRESS",
    multiple=True,
    required=True,
    help="Where a balancer takes reports: host:port or unix:/path; repeat for several.",
)
@click.option(
    "--report-hz",
    type=click.FloatRange(1.0, _MOST_HZ),
    default=20.0,
    show_default=True,
    help="Messages a second to one balancer, at most; one has the reports of many workers.",
)
@tls_options("reports travel")
@click.option("--listen-tls-cert", type=FILE, help="Certificate chain to show agents; given, they report by TLS.")
@click.option("--listen-tls-key", type=FILE, help="Its private key.")
@click.option("--listen-tls-ca", type=FILE, help="What signed the agents' certificates.")
@click.option(
    "--listen-tls-san",
    metavar="NAME",
    default=ReportsListenerTls.model_fields["client_san"].default,
    show_default=True,
    help="Name that an agent's certificate must have.",
)
@click.option("--metrics", metavar="HOST:PORT", default="", help="Serves /metrics there.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def relay(listen: str, balancers: tuple[str, ...], report_hz: float, metrics: str, log_level: str, **tls: Any) -> None:
    """Take the reports of a rack's agents to all balancers: of each worker the newest, on one stream a balancer."""
    configure(LogSection.model_validate({"level": log_level}))
    check_targets("--balancer", balancers, "10.0.0.5:9102")
    towards, of_agents = taken_tls(tls), _listener_tls(**tls)
    if towards is not None:
        credentials(towards)
    certificates = None if of_agents is None else Certificates("reports", of_agents)
    uvloop.run(_serve(listen, certificates, balancers, towards, 1.0 / report_hz, metrics))


def _listener_tls(
    listen_tls_cert: Path | None, listen_tls_key: Path | None, listen_tls_ca: Path | None, listen_tls_san: str
) -> ReportsListenerTls | None:
    files = {"cert": listen_tls_cert, "key": listen_tls_key, "ca": listen_tls_ca}
    if not any(files.values()):
        return None
    if missing := [f"--listen-tls-{part}" for part, file in files.items() if file is None]:
        raise click.UsageError(f"{', '.join(missing)}: give --listen-tls-cert, -key and -ca together, or none of them")
    if listen_tls_san.count(WORKER) != 1:
        raise click.UsageError(f"--listen-tls-san {listen_tls_san!r} must have {WORKER} in it, once")
    return ReportsListenerTls(
        cert_file=str(listen_tls_cert),
        key_file=str(listen_tls_key),
        client_ca_file=str(listen_tls_ca),
        client_san=listen_tls_san,
    )


async def _serve(
    listen: str,
    certificates: Certificates | None,
    balancers: tuple[str, ...],
    tls: BalancerTls | None,
    period_s: float,
    metrics_at: str,
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    passing = Relay(balancers, tls, period_s, may_report(None if certificates is None else certificates.role))
    server = grpc.aio.server(options=[*LIMITS, *SERVER_OPTIONS, *OWN_SERVER_OPTIONS, ("grpc.so_reuseport", 0)])
    passing.collector.add_to(server)
    bind(server, "--listen", listen, certificates)
    await server.start()
    heap.settle()
    pages = await serve_metrics(lambda: _latest(passing), metrics_at) if metrics_at else None
    try:
        async with asyncio.TaskGroup() as group:
            work = [passing.run(), *([] if certificates is None else [certificates.follow(stop)])]
            tasks = [group.create_task(each) for each in work]
            await stop.wait()
            for task in tasks:
                task.cancel()
    finally:
        if pages is not None:
            await pages.stop()
        await server.stop(_GRACE_S)


def _latest(passing: Relay) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Counted(passing))
    return generate_latest(registry)


class _Counted(Scraped):
    def __init__(self, passing: Relay) -> None:
        self._passing = passing

    def collect(self) -> Iterator[Metric]:
        agents, counts = self._passing.collector.counts, self._passing.counts
        yield gauge("balancer_relay_agents", "Agents' report streams open now", agents.streams)
        yield gauge(
            "balancer_relay_balancers", "Balancers that acknowledged something of late", self._passing.connected
        )
        yield counter("balancer_relay_reports", "Reports that agents sent", agents.reports)
        yield counter("balancer_relay_reports_sent", "Reports sent on, to each balancer", counts.sent)
        says = "Reports that a newer one of their worker replaced before they were sent to a balancer"
        yield counter("balancer_relay_reports_replaced", says, counts.replaced)
        yield counter("balancer_relay_refused", "Times that a balancer took no more of a worker", counts.refused)
        ended = {cause: getattr(agents, cause) for cause in ("silent", "invalid", "refused", "taken_over", "too_many")}
        yield counter("balancer_relay_streams_ended", "Agents' streams that ended, by cause", ended, "cause")
