"""Triton's metrics page: what keeps it from being read is told with a remedy that fits."""

import asyncio

import pytest

from balancer.agent.metrics_page import MetricsPage, MetricsUnavailableError
from balancer.stack.process import free_ports


async def test_where_nobody_listens_triton_may_be_down_or_elsewhere() -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(MetricsUnavailableError) as caught:
        await MetricsPage(address, 5.0).fetch()
    assert caught.value.gone
    assert str(caught.value) == (
        f"http://{address}/metrics: connection refused; is Triton up at that address, with --allow-metrics=true? "
        "The agent's --triton-metrics, --triton-grpc and --triton-http name another"
    )


async def test_what_answers_without_the_page_may_be_another_port() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        page = MetricsPage(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", 5.0)
        with pytest.raises(MetricsUnavailableError, match=r"404 Not Found'; is that Triton's metrics port\? The agent"):
            await page.fetch()
        page.close()
