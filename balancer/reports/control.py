"""The agent's own Unix socket, by which `balancer agent drain` tells it to drain; for its own user only.

One JSON object a line: `{"drain": seconds}` is answered by `{"why": ""}` once the worker is drained, or by why not.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

logger = logging.getLogger(__name__)

_NAME = "balancer-agent.sock"
_LINE_BYTES = 1024
_READ_TIMEOUT_S = 5.0
_MAX_CALLERS = 8
_MARGIN_S = 5.0
MAX_TIMEOUT_S = 86_400.0

Drained = Callable[[float], Awaitable[str]]
"""Given a time limit in seconds: drains, and returns why that was not done; empty: it is."""


def default_path() -> Path:
    """Of the agent's socket: in the user's runtime directory, or in /run."""
    return Path(os.environ.get("XDG_RUNTIME_DIR") or "/run") / _NAME


@contextlib.asynccontextmanager
async def listening(path: Path | None, drained: Drained) -> AsyncIterator[None]:
    """Listen while the block runs. Where that cannot be, the log says so, and the agent runs without."""
    try:
        server = await _server(path, drained) if path else None
    except OSError as error:
        logger.warning(
            "no control socket, so `balancer agent drain` will not find this agent: %s: %s; name a path that this user "
            "may write to and no other agent has: --control PATH",
            path,
            error.strerror or error,
        )
        server = None
    try:
        yield
    finally:
        if server is not None and path is not None:
            server.close()
            path.unlink(missing_ok=True)


async def _server(path: Path, drained: Drained) -> asyncio.Server:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        # Bound by a name that nobody knows, and renamed once only its owner may open it: no moment is left for others.
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        listener.bind(str(draft))
        draft.chmod(stat.S_IRUSR | stat.S_IWUSR)
        draft.rename(path)
    except OSError:
        listener.close()
        raise
    callers = asyncio.Semaphore(_MAX_CALLERS)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if callers.locked():
            writer.close()
            return
        async with callers:
            await _answer(reader, writer, drained)

    return await asyncio.start_unix_server(serve, sock=listener, limit=_LINE_BYTES)


def _remove_stale(path: Path) -> None:
    """Remove what an agent that was killed left behind; OSError where one that lives listens there."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(_READ_TIMEOUT_S)
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError("another agent listens there")


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, drained: Drained) -> None:
    try:
        async with asyncio.timeout(_READ_TIMEOUT_S):
            line = await reader.readline()
        timeout_s = float(json.loads(line)["drain"])
        if not 0.0 <= timeout_s <= MAX_TIMEOUT_S:
            raise ValueError(f"drain: {timeout_s} is not 0 to {MAX_TIMEOUT_S:.0f} seconds")
        why = await drained(timeout_s)
    except (OSError, TimeoutError, ValueError, KeyError, TypeError) as error:
        why = f"not understood: {error}"
    with contextlib.suppress(OSError):
        writer.write(json.dumps({"why": why}).encode() + b"\n")
        await writer.drain()
    writer.close()


async def drain(path: Path, timeout_s: float) -> str:
    """Tell the agent that listens at `path` to drain, and wait; why it did not, or empty."""
    try:
        async with asyncio.timeout(timeout_s + _MARGIN_S):
            reader, writer = await asyncio.open_unix_connection(path, limit=_LINE_BYTES)
            try:
                writer.write(json.dumps({"drain": timeout_s}).encode() + b"\n")
                return str(json.loads(await reader.readline() or b'{"why": "the agent ended"}')["why"])
            finally:
                writer.close()
    except TimeoutError:
        return f"the agent at {path} does not answer"
    except OSError as error:
        return f"no agent listens at {path}: {error.strerror}; is it up, and was it given the same --control?"
