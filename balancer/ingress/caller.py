"""Calls the listener for messages, as whom the operator says."""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from balancer.balancer_tls import BalancerTls, contents, http_context
from balancer.files.answers import TooLongError, bearer_of, whole_body
from balancer.ingress.calls import DEADLINE_HEADER, Call
from balancer.ingress.events import Execution
from balancer.ingress.grpc_caller import INFER_PATH, GrpcCaller
from balancer.ingress.message import EXECUTION_HEADER, Message
from balancer.ingress.outcomes import (
    LATE,
    MAX_ANSWER_BYTES,
    MAX_CALL_S,
    MAX_REASON_BYTES,
    Answer,
    Failure,
    broken,
    refusal,
    unreached,
)

_RETURNED = ("content-type", "inference-header-content-length", "traceparent")
_STREAM_TYPE = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Access:
    """By what the listener lets an ingress in, and the ingress knows the listener."""

    tls: BalancerTls | None = None
    """None: https by what the system trusts."""
    key_file: Path | None = None
    """Holds an API key or a token."""

    def contents(self) -> tuple[tuple[bytes, ...], Mapping[str, str]]:
        """Of its files, as they are now; blocks.

        Raises:
            OperatorError: one cannot be read.
        """
        bearer = {} if self.key_file is None else bearer_of(self.key_file, "the listener's key")
        return () if self.tls is None else contents(self.tls), bearer


class Caller:
    def __init__(self, listener: str, access: Access = Access(), unix_s: Callable[[], float] = time.time) -> None:
        """`listener`: its URL."""
        self._listener, self._access, self._unix_s = listener.rstrip("/"), access, unix_s
        self._session: aiohttp.ClientSession | None = None
        self._by_grpc: GrpcCaller | None = None
        self._context: ssl.SSLContext | None = None
        self._contents: object = None
        self._bearer: Mapping[str, str] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Raises OperatorError, as `renew`."""
        await self.renew()
        # As many connections as there are calls: how many, the room says.
        connector = aiohttp.TCPConnector(limit=0)
        # Answers are published as they come, so they come as anybody can read them.
        plain = {"Accept-Encoding": "identity"}
        self._session = aiohttp.ClientSession(connector=connector, headers=plain, auto_decompress=False)

    async def renew(self) -> None:
        """Read the certificates and the key again, for calls from now on.

        Raises:
            OperatorError: a file cannot be used; those before stay in use.
        """
        tls = self._access.tls
        now = await asyncio.to_thread(self._access.contents)
        if now == self._contents:
            return
        context = None if tls is None else await asyncio.to_thread(http_context, tls)
        before, self._by_grpc = self._by_grpc, GrpcCaller(self._listener, tls)
        self._context, self._contents, self._bearer = context, now, now[1]
        if before is not None:
            leaving = asyncio.create_task(before.close(MAX_CALL_S))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        if self._by_grpc is not None:
            await self._by_grpc.close()
        for leaving in self._leaving:
            leaving.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)

    async def call(
        self, call: Call, message: Message, until_s: float, execution: Execution | None = None
    ) -> Answer | Failure:
        """Send it, once; `until_s`: Unix time of its deadline. `execution` gets what comes of a streamed answer."""
        session, by_grpc = self._session, self._by_grpc
        assert session is not None  # opened before
        assert by_grpc is not None
        left_s = max(min(until_s - self._unix_s(), MAX_CALL_S), 1e-3)
        headers = {**call.headers, **self._bearer}
        if until_s < float("inf"):
            headers[DEADLINE_HEADER] = str(max(int(left_s * 1e3), 1))
        if call.path == INFER_PATH:
            return await by_grpc.call(message.body, headers, left_s)
        url, told = self._listener + call.path, None
        how: dict[str, Any] = {"ssl": self._context or True, "allow_redirects": False}
        if self._access.tls is not None:
            how["server_hostname"] = self._access.tls.server_name
        limit = aiohttp.ClientTimeout(total=left_s, sock_connect=5.0)
        try:
            async with session.post(url, data=message.body, headers=headers, timeout=limit, **how) as response:
                told = execution if response.content_type == _STREAM_TYPE else None
                body = await whole_body(response, MAX_ANSWER_BYTES, *(() if told is None else (told.feed,)))
        except aiohttp.ClientConnectorError as error:
            return unreached(self._listener, error.strerror or error)
        except TimeoutError:
            return LATE
        except TooLongError as error:
            return Failure(str(error), final=True)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return broken(error)
        return _read(response.status, response.headers, body, told)


def _read(status: int, headers: Mapping[str, str], body: bytes, told: Execution | None) -> Answer | Failure:
    if 200 <= status < 300:
        kept = {name: headers[name] for name in _RETURNED if name in headers}
        if told is not None:
            kept[EXECUTION_HEADER] = told.name
        return Answer(body, kept | {"x-status": str(status)})
    return refusal(status, body[:MAX_REASON_BYTES].decode("utf-8", "replace"), _retry_after_s(headers))


def _retry_after_s(headers: Mapping[str, Any]) -> float:
    text = str(headers.get("Retry-After", ""))
    return float(text) if re.fullmatch(r"[0-9]{1,5}", text) else 0.0
