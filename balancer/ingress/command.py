"""`balancer ingress`: a process of its own, before the listener."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import uvloop

from balancer.cli.admin_client import admin_options, balancers_of
from balancer.cli.metrics_page import serve_metrics
from balancer.cli.tls_options import FILE, taken_tls, tls_options
from balancer.config.log import LogSection
from balancer.errors import OperatorError
from balancer.files.schema import Address
from balancer.ingress.caller import Access, Caller
from balancer.ingress.ingress import Ingress, Options
from balancer.ingress.message import Broker, Topics, without_password
from balancer.ingress.metrics import IngressMetrics
from balancer.ingress.room import Room
from balancer.server.logs import configure

logger = logging.getLogger(__name__)
RENEWED_EACH_S = 60.0
"""As balancers do with theirs."""
_BROKERS = {
    "nats": ("balancer.ingress.nats_broker", "NatsBroker"),
    "redis": ("balancer.ingress.redis_broker", "RedisBroker"),
    "rediss": ("balancer.ingress.redis_broker", "RedisBroker"),
    "kafka": ("balancer.ingress.kafka_broker", "KafkaBroker"),
}
"""By the URL's scheme: the module with the broker's client, imported where it is used alone, and the class."""

_EPILOG = """\b
Examples:
  balancer ingress --broker nats://127.0.0.1:4222 --listener http://127.0.0.1:8080
  balancer ingress --broker redis://127.0.0.1:6379/0 --requests asked --answers said --model digits
  balancer ingress --broker kafka://127.0.0.1:9092 --in-order

Each message is a request: a body of KServe or OpenAI JSON, its model in the header x-model or in OpenAI's body. The
answer has the request's id, and each id is answered once, even where processes are killed. docs/ingress.md lists the
headers, and what each broker guarantees. After Ctrl-C or SIGTERM it takes no new messages, and finishes what it holds.
"""


@click.command(epilog=_EPILOG)
@click.option(
    "--broker",
    "broker_url",
    metavar="URL",
    required=True,
    envvar="BALANCER_BROKER",
    show_envvar=True,
    help=f"By {', '.join(_BROKERS)}://HOST:PORT; with a password in it, give it by the environment.",
)
@click.option("--requests", default="requests", show_default=True, help="Topic of the requests.")
@click.option("--answers", default="answers", show_default=True, help="Topic of the answers.")
@click.option("--dead-letters", default="", help="Topic of what cannot be answered  [default: that of requests, -dead]")
@click.option("--events", default="", help="Topic of the events of streamed answers, as they come  [default: none]")
@click.option("--group", default="balancer", show_default=True, help="Ingresses of one group share the requests.")
@click.option(
    "--name",
    default="",
    help="Of this ingress, the same after a restart, as a StatefulSet's pods have: what the one of that name left open "
    "with Kafka ends at once  [default: a new one]",
)
@click.option("--in-order", is_flag=True, help="Messages of one key one after another; see docs/ingress.md.")
@click.option("--model", default="", help="Of messages that name none.")
@click.option("--listener", metavar="URL", default="http://127.0.0.1:8080", show_default=True, help="Envoy's.")
@tls_options("messages go", "--listener-tls", "the listener's certificate", "the listener asks")
@click.option("--listener-key-file", type=FILE, help="Holds the API key or the token that the listener asks for.")
@click.option("--metrics", metavar="HOST:PORT", default="", help="Serves /metrics there.")
@click.option(
    "--lease-s",
    type=click.FloatRange(min=1),
    default=30.0,
    show_default=True,
    help="After so long the messages of an ingress that is gone go to another.",
)
@click.option("--drain-s", type=click.FloatRange(min=0), default=25.0, show_default=True, help="For what is held.")
@admin_options(says="listen.admin of a balancer, which says how much room its fleet has.")
def ingress(
    broker_url: str,
    requests: str,
    answers: str,
    dead_letters: str,
    events: str,
    group: str,
    name: str,
    in_order: bool,
    model: str,
    listener: str,
    listener_key_file: Path | None,
    metrics: str,
    lease_s: float,
    drain_s: float,
    **where: Any,
) -> None:
    """Serve the requests of a topic, and write their answers to another."""
    configure(LogSection())
    if urlsplit(listener).scheme not in ("http", "https"):
        raise click.UsageError(f"--listener {listener!r}: give http://HOST:PORT or https://HOST:PORT")
    dead = dead_letters or f"{requests}-dead"
    named = [each for each in (requests, answers, dead, events) if each]
    if len(named) > len(set(named)):
        raise click.UsageError("--requests, --answers, --dead-letters and --events must each name another topic")
    own_name = name or f"{socket.gethostname()}-{os.getpid()}"
    broker = _broker(broker_url, Topics(requests, answers, dead, group, in_order, lease_s, own_name, events))
    access = Access(taken_tls(where, "--listener-tls"), listener_key_file)
    if access.tls is not None and not listener.startswith("https:"):
        raise click.UsageError(f"--listener {listener!r}: with --listener-tls-ca give https://HOST:PORT")
    balancers = balancers_of(**where)
    uvloop.run(
        _serve(
            broker,
            Caller(listener, access),
            Room(lambda: balancers.get("/room")),
            Options(model, in_order, bool(events), drain_s),
            metrics,
        )
    )


def _broker(url: str, topics: Topics) -> Broker:
    scheme = urlsplit(url).scheme
    if scheme not in _BROKERS:
        raise click.UsageError(f"--broker {without_password(url)}: its scheme must be one of {', '.join(_BROKERS)}")
    module, name = _BROKERS[scheme]
    broker: Broker = getattr(importlib.import_module(module), name)(url, topics)
    return broker


async def _renewing(caller: Caller) -> None:
    while True:
        await asyncio.sleep(RENEWED_EACH_S)
        try:
            await caller.renew()
        except OperatorError as error:
            logger.warning("the listener's certificates and key stay as they were: %s", error)


async def _serve(broker: Broker, caller: Caller, room: Room, options: Options, metrics_at: Address) -> None:
    metrics, stop = IngressMetrics(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await caller.open()
    watching = [asyncio.ensure_future(each) for each in (room.run(), _renewing(caller))]
    pages = await serve_metrics(metrics.latest, metrics_at) if metrics_at else None
    try:
        await Ingress(broker, caller.call, room, options, metrics).run(stop)
    finally:
        for each in watching:
            each.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        await caller.close()
        if pages is not None:
            await pages.stop()
