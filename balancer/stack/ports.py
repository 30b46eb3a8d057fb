"""Free ports for the processes of a local stack."""

import contextlib
import os
import random
import socket

# Below the range that kernels hand out to outgoing connections (32768 and up on Linux): a port found there stays free
# between our look and the server's bind, unless another server takes it.
_FIRST_PORT = 20_000
_LAST_PORT = 32_767
_ATTEMPTS_PER_PORT = 200
ALLOWED = "LOCAL_PORTS"
"""In the environment: FIRST-LAST, both included, so that programs that start servers side by side each have a range."""

_given: set[int] = set()
"""Handed out by this process: a server may take seconds to bind its port, which looks free until then."""


def allowed() -> tuple[int, int]:
    """The first and the last port that may be found.

    Raises:
        ValueError: the environment says something else than FIRST-LAST.
    """
    first, _, last = os.environ.get(ALLOWED, f"{_FIRST_PORT}-{_LAST_PORT}").partition("-")
    return int(first), int(last)


def free_ports(count: int, address: str = "127.0.0.1") -> list[int]:
    """Return `count` different TCP ports that nobody listens on at `address`.

    They are bound together and released, so they are free when this returns; nothing reserves them after that.

    Raises:
        OSError: if that many cannot be found.
    """
    ports: list[int] = []
    first, last = allowed()
    generator = random.SystemRandom()
    with contextlib.ExitStack() as held:
        for _ in range(count * _ATTEMPTS_PER_PORT):
            if len(ports) == count:
                break
            candidate = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            port = generator.randint(first, last)
            if port in _given:
                continue
            try:
                candidate.bind((address, port))
            except OSError:
                continue
            ports.append(port)
            _given.add(port)
    if len(ports) < count:
        raise OSError(f"found only {len(ports)} of {count} free ports at {address}; stop some servers there")
    return ports


def free_port_range(count: int, address: str = "127.0.0.1") -> int:
    """Return the first of `count` free TCP ports in a row; as with `free_ports`, nothing reserves them.

    Raises:
        OSError: if there is no such row.
    """
    _, last = allowed()
    for _ in range(_ATTEMPTS_PER_PORT):
        first = free_ports(1, address)[0]
        if first + count - 1 > last:
            continue
        with contextlib.ExitStack() as held:
            try:
                for port in range(first + 1, first + count):
                    held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM)).bind((address, port))
            except OSError:
                continue
            row = set(range(first + 1, first + count))
            if _given & row:
                continue
            _given.update(row)
            return first
    raise OSError(f"found no {count} free ports in a row at {address}; stop some servers there")
