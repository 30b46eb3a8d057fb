"""Fetches Triton's `/metrics` page over one HTTP connection that is kept open.

By hand rather than with aiohttp: at 100 pages a second beside every Triton the difference counts (23 against 102
microseconds of CPU a page, measured), and one GET of one known server needs little of HTTP.
"""

import asyncio

_MAX_PAGE_BYTES = 64 * 1024 * 1024
_NOT_THERE = (
    "is Triton up at that address, with --allow-metrics=true? The agent's --triton-metrics, --triton-grpc and "
    "--triton-http name another"
)
_OTHER_PAGE = "is that Triton's metrics port? The agent's --triton-metrics names another"


class MetricsUnavailableError(Exception):
    """The page cannot be had; the message says why."""

    def __init__(self, message: str, *, gone: bool) -> None:
        super().__init__(message)
        self.gone = gone
        """Whether nothing listens there any more, so that whatever listens next is another process."""


class MetricsPage:
    """The page at `http://address/metrics`; one fetch at a time."""

    def __init__(self, address: str, timeout_s: float) -> None:
        """`address` is `host:port`; a fetch that takes longer than `timeout_s` fails."""
        self.address = address
        host, _, self._port = address.rpartition(":")
        self._host = host.strip("[]")
        self._request = f"GET /metrics HTTP/1.1\r\nHost: {address}\r\nAccept: text/plain\r\n\r\n".encode()
        self._timeout_s = timeout_s
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def fetch(self) -> bytes:
        """The page's text.

        Raises:
            MetricsUnavailableError: if it cannot be had.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._connection is not None:
                    try:
                        return await self._get(*self._connection)
                    except (OSError, EOFError):
                        # A kept connection may have been closed as idle: only a new one tells whether Triton is gone.
                        self.close()
                return await self._get(*await self._connect())
        except TimeoutError:
            self.close()
            raise self._unavailable(f"no answer within {self._timeout_s} s", gone=False, remedy=_NOT_THERE) from None
        except ConnectionRefusedError:
            raise self._unavailable("connection refused", gone=True, remedy=_NOT_THERE) from None
        except (OSError, EOFError, asyncio.LimitOverrunError, ValueError) as error:
            self.close()
            raise self._unavailable(str(error) or type(error).__name__, gone=False, remedy=_NOT_THERE) from error
        except BaseException:
            # Cancelled, or not understood: the rest of an answer may still come, so the connection is of no more use.
            self.close()
            raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self._connection = await asyncio.open_connection(self._host, int(self._port))
        return self._connection

    async def _get(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(self._request)
        head = await reader.readuntil(b"\r\n\r\n")
        status, *lines = head.split(b"\r\n")
        if b" 200 " not in status + b" ":
            raise self._unavailable(f"answered {status.decode(errors='replace')!r}", gone=False)
        for line in lines:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length" and (size := int(value)) <= _MAX_PAGE_BYTES:
                return await reader.readexactly(size)
        raise self._unavailable("the answer's Content-Length is missing or too large", gone=False)

    def _unavailable(self, why: str, *, gone: bool, remedy: str = _OTHER_PAGE) -> MetricsUnavailableError:
        return MetricsUnavailableError(f"http://{self.address}/metrics: {why}; {remedy}", gone=gone)
