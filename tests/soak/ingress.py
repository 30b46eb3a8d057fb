"""`python -m soak.ingress`: messages through an ingress while all that serves them is killed, again and again."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import click
from support.brokers import BROKERS, Asked, RealBroker
from support.stack import Stack

from balancer.stack.process import Child, free_ports

_BODY = json.dumps(
    {"inputs": [{"name": "IMAGE", "shape": [1, 64], "datatype": "FP32", "data": [0.0] * 64}]}, separators=(",", ":")
).encode()
_CHUNK, _MOST_AHEAD = 500, 10_000
_KEYS = 50
_LONGEST_S = 3600.0


class Run:
    def __init__(self, folder: Path, broker: RealBroker, count: int, in_order: bool, seed: int) -> None:
        self.stack = Stack(folder / "stack", workers=3, models=("digits",), patient=False)
        self.broker, self.count, self.in_order = broker, count, in_order
        self.random = random.Random(seed)
        self.published = 0
        self.kills: Counter[str] = Counter()
        self.counted: defaultdict[str, float] = defaultdict(float)
        """What the ingresses' own metrics said before each was killed."""
        self.ports = free_ports(1 if in_order or not broker.lasting else 2)
        self.ingresses: list[Child] = []

    async def run(self) -> tuple[Counter[str], list[str]]:
        """How many messages each topic has, and their ids."""
        async with self.stack:
            await self.broker.start()
            self.ingresses = [await self._ingress(number) for number in range(len(self.ports))]
            try:
                killing = asyncio.create_task(self._kill_at_random())
                await self._publish_all()
                async with asyncio.timeout(_LONGEST_S):
                    while (left := await self._left()) > 0:
                        click.echo(f"{left} left, {dict(self.kills)}")
                        await asyncio.sleep(5)
                killing.cancel()
                await asyncio.gather(killing, return_exceptions=True)
                for number in range(len(self.ingresses)):
                    await self._read(number)
                said = await self.broker.said()
            finally:
                await asyncio.gather(*(each.stop() for each in self.ingresses))
                await self.broker.stop()
        return Counter(each.topic for each in said), [each.id for each in said]

    async def _ingress(self, number: int) -> Child:
        where = (
            "--broker",
            self.broker.url,
            "--balancer",
            self.stack.admin(),
            "--listener",
            f"http://{self.stack.url}",
        )
        how = ("--name", f"ingress-{number}", "--metrics", f"127.0.0.1:{self.ports[number]}", "--lease-s", "6")
        further = ("--model", "digits", *(("--in-order",) if self.in_order else ()))
        log = self.broker.directory / f"ingress-{number}.log"
        ingress = Child(arguments=["ingress", *where, *how, *further], log_path=log)
        await ingress.start()
        return ingress

    async def _publish_all(self) -> None:
        while self.published < self.count:
            until = min(self.published + _CHUNK, self.count)
            numbers = range(self.published, until)
            asked = [Asked(f"id-{n}", _BODY, {"x-routing-key": f"k{n % _KEYS}"}) for n in numbers]
            await self._insist(lambda asked=asked: self.broker.publish(asked))
            self.published = until
            while await self._left() > _MOST_AHEAD:
                await asyncio.sleep(0.2)

    async def _left(self) -> int:
        left = 0

        async def look() -> None:
            nonlocal left
            left = self.published - await self.broker.ended()

        await self._insist(look)
        return left

    async def _insist(self, do: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                async with asyncio.timeout(30):
                    return await do()
            except Exception as error:  # whatever a client raises while its broker is away
                click.echo(f"again, after {type(error).__name__}")
                await asyncio.sleep(0.5)

    async def _kill_at_random(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(4, 12))
            kills: list[tuple[str, Callable[[], Awaitable[None]]]] = [
                ("ingress", self._kill_ingress),
                ("balancer", self._kill_balancer),
                ("envoy", self._kill_envoy),
                ("triton", self._kill_triton),
            ]
            kills += [("broker", self._kill_broker)] if self.broker.lasting else []
            name, kill = self.random.choice(kills)
            self.kills[name] += 1
            click.echo(f"{time.strftime('%H:%M:%S')} kill {name}")
            await kill()

    async def _kill_ingress(self) -> None:
        number = self.random.randrange(len(self.ingresses))
        await self._read(number)
        await self.ingresses[number].kill()
        self.ingresses[number] = await self._ingress(number)

    async def _kill_broker(self) -> None:
        await self.broker.kill()
        await asyncio.sleep(self.random.uniform(0, 2))
        await self.broker.start()

    async def _kill_balancer(self) -> None:
        await self.stack.balancer.kill()
        await asyncio.sleep(self.random.uniform(0, 2))
        await self.stack.start_balancer()

    async def _kill_envoy(self) -> None:
        await self.stack.envoy.kill()
        await self.stack.start_envoy()

    async def _kill_triton(self) -> None:
        number = self.random.randrange(self.stack.workers)
        await self.stack.tritons[number].kill()
        await asyncio.sleep(self.random.uniform(0, 2))
        await self.stack.start_triton(number)

    async def _read(self, number: int) -> None:
        try:
            url = f"http://127.0.0.1:{self.ports[number]}/metrics"
            patience = aiohttp.ClientTimeout(2)
            async with aiohttp.ClientSession(timeout=patience) as session, session.get(url) as response:
                lines = (await response.text()).splitlines()
        except (aiohttp.ClientError, TimeoutError):
            return
        for line in lines:
            if line.startswith("balancer_ingress_") and "_total" in line:
                name, value = line.rsplit(" ", 1)
                self.counted[name.removeprefix("balancer_ingress_")] += float(value)


@click.command()
@click.option("--broker", type=click.Choice([*BROKERS]), default="nats", show_default=True)
@click.option("--messages", type=click.IntRange(min=1), default=1_000_000, show_default=True)
@click.option("--in-order", is_flag=True, help="One ingress, and messages of a key in their order.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of what is killed when.")
def main(broker: str, messages: int, in_order: bool, seed: int) -> None:
    """Many messages through an ingress while all that serves them is killed, and what became of each id."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ingress-") as folder:
        run = Run(Path(folder), BROKERS[broker](Path(folder)), messages, in_order, seed)
        topics, ids = asyncio.run(run.run())
    took_s = time.monotonic() - began_s
    once = len(set(ids))
    click.echo(f"{messages} messages by {broker} in {took_s:.0f} s; killed: {dict(run.kills)}")
    click.echo(f"ended: {dict(topics)}; ids: {once}; more than once: {len(ids) - once}; lost: {messages - once}")
    click.echo("\n".join(f"{name} {value:,.0f}" for name, value in sorted(run.counted.items())))
    if in_order:
        numbers: dict[int, list[int]] = {}
        for id_ in ids:
            number = int(id_.removeprefix("id-"))
            numbers.setdefault(number % _KEYS, []).append(number)
        click.echo(f"keys out of order: {sum(each != sorted(each) for each in numbers.values())} of {_KEYS}")
    if len(ids) != once or once != messages:
        raise click.ClickException("an id does not stand once")


if __name__ == "__main__":
    main()
