"""A network namespace behind a link with delay and loss: IP packets, handed from one TUN device to another.

`tc netem` would do the same within the kernel, where the kernel has it. `python -m support.far_link` keeps one up.
"""

import asyncio
import fcntl
import os
import random
import signal
import struct
import subprocess
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from balancer.stack.process import LocalProcess
from support.waiting import eventually

AVAILABLE = os.geteuid() == 0 and Path("/dev/net/tun").exists()
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_PACKET_BYTES = 65_536
_READY = "the link is up"


@dataclass(slots=True, kw_only=True)
class FarLink(LocalProcess):
    """`near` is an address of this machine, `far` the other end's, whose processes see nothing else of the network."""

    title: ClassVar[str] = "far link"
    delay_ms: float
    """One way."""
    loss: float
    """Share of the packets."""
    number: int = field(default_factory=lambda: random.SystemRandom().randrange(1 << 14))

    @property
    def near(self) -> str:
        return f"10.{64 + self.number // 256}.{self.number % 256}.1"

    @property
    def far(self) -> str:
        return f"{self.near[:-1]}2"

    @property
    def namespace(self) -> str:
        return f"far-{self.number}"

    def inside(self, *command: str) -> tuple[str, ...]:
        """The command, to be run at the far end."""
        return ("ip", "netns", "exec", self.namespace, *command)

    async def start(self) -> None:
        """Return once packets go through."""
        self._check_not_started()
        told = (str(self.number), self.near, self.far, str(self.delay_ms), str(self.loss))
        found = {"PYTHONPATH": str(Path(__file__).parents[1])}
        command = (sys.executable, "-m", "support.far_link", *told)
        await self._spawn(*command, at_our_end="TERM", environment=found)
        await eventually(lambda: _READY in self.log_path.read_text(), "packets go through")


@dataclass(slots=True, kw_only=True)
class FarProcess(LocalProcess):
    """A command of Python's at the far end of a link."""

    title: ClassVar[str] = "far process"
    link: FarLink
    arguments: tuple[str, ...]

    async def start(self) -> None:
        """It runs when this returns."""
        self._check_not_started()
        await self._spawn(*self.link.inside(sys.executable, "-m", *self.arguments), at_our_end="TERM")


def _tun(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=10)


class _Way:
    """From one device to the other: later, in order, and not every packet."""

    def __init__(self, source: int, target: int, delay_s: float, loss: float, seed: int) -> None:
        self._source, self._target, self._delay_s, self._loss = source, target, delay_s, loss
        self._drawn = random.Random(seed)
        self._packets: deque[bytes] = deque()

    def take(self) -> None:
        packet = os.read(self._source, _PACKET_BYTES)
        if self._drawn.random() >= self._loss:
            self._packets.append(packet)
            asyncio.get_running_loop().call_later(self._delay_s, self._give)

    def _give(self) -> None:
        os.write(self._target, self._packets.popleft())


async def _keep_up(number: str, near: str, far: str, delay_ms: str, loss: str) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    names, namespace = (f"near{number}", f"far{number}"), f"far-{number}"
    devices = [_tun(name) for name in names]
    _ip("netns", "add", namespace)
    try:
        _ip("link", "set", names[1], "netns", namespace)
        _ip("addr", "add", near, "peer", far, "dev", names[0])
        _ip("link", "set", names[0], "up")
        _ip("-n", namespace, "addr", "add", far, "peer", near, "dev", names[1])
        for name in (names[1], "lo"):
            _ip("-n", namespace, "link", "set", name, "up")
        for seed, (source, target) in enumerate((devices, devices[::-1])):
            loop.add_reader(source, _Way(source, target, float(delay_ms) / 1000, float(loss), seed).take)
        print(_READY, flush=True)
        await stop.wait()
    finally:
        _ip("netns", "delete", namespace)


if __name__ == "__main__":
    asyncio.run(_keep_up(*sys.argv[1:]))
