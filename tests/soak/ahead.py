"""`python -m soak.ahead`: an ingress before gigabytes of requests, and the most memory that it takes."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path

import click
from support.brokers import BROKERS, Asked, RealBroker
from support.running import running
from support.stack import Stack

from balancer.stack.process import Child

_BODY = json.dumps(
    {"inputs": [{"name": "IMAGE", "shape": [1, 64], "datatype": "FP32", "data": [0.0] * 64}]}, separators=(",", ":")
).encode()
_CHUNK = 20
_LOOK_S = 5.0


@click.command()
@click.option("--broker", type=click.Choice([*BROKERS]), default="nats", show_default=True)
@click.option("--gigabytes", type=click.FloatRange(min=0.01), default=10.0, show_default=True)
@click.option("--message-bytes", type=click.IntRange(len(_BODY)), default=10**6, show_default=True)
@click.option("--seconds", type=click.FloatRange(min=10), default=120.0, show_default=True, help="Of serving.")
def main(broker: str, gigabytes: float, message_bytes: int, seconds: float) -> None:
    """Publish that much, serve it for so long, and say what memory the ingress took at most."""
    with tempfile.TemporaryDirectory(prefix="ahead-") as folder:
        asyncio.run(_run(BROKERS[broker](Path(folder)), int(gigabytes * 1e9), message_bytes, seconds))


async def _run(broker: RealBroker, total_bytes: int, message_bytes: int, seconds: float) -> None:
    count, body = total_bytes // message_bytes, _BODY.ljust(message_bytes)
    async with running(broker, stack := Stack(broker.directory / "stack", workers=2, models=("digits",))):
        began_s = time.monotonic()
        for first in range(0, count, _CHUNK):
            numbers = range(first, min(first + _CHUNK, count))
            await broker.publish([Asked(f"id-{number}", body, {}) for number in numbers])
        click.echo(f"{count} messages, {count * message_bytes / 1e9:.1f} GB, after {time.monotonic() - began_s:.0f} s")
        where = ("--broker", broker.url, "--balancer", stack.admin(), "--listener", f"http://{stack.url}")
        ingress = Child(arguments=["ingress", *where, "--model", "digits"], log_path=broker.directory / "ingress.log")
        async with running(ingress):
            began_s = time.monotonic()
            while time.monotonic() < began_s + seconds:
                await asyncio.sleep(_LOOK_S)
                ended = await broker.ended()
                click.echo(f"{ended} ended, {_peak_mib(ingress.process.pid):.0f} MiB at most")
                if ended == count:
                    break


def _peak_mib(pid: int) -> float:
    (line,) = (each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main()
