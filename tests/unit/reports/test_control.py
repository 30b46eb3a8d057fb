"""The agent's control socket: for its own user, for one agent, and never what ends an agent."""

import asyncio
import stat
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from balancer.cli.agent import agent
from balancer.reports.control import drain, listening


@pytest.fixture
async def path() -> AsyncIterator[Path]:
    """Short: a Unix socket's address is at most 107 bytes."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory) / "agent.sock"


async def drained(timeout_s: float) -> str:
    return "" if timeout_s >= 1.0 else f"not drained after {timeout_s} s"


async def test_a_caller_hears_whether_the_worker_is_drained(path: Path) -> None:
    async with listening(path, drained):
        assert await drain(path, 5.0) == ""
        assert await drain(path, 0.5) == "not drained after 0.5 s"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()
    assert "no agent listens" in await drain(path, 1.0)


async def test_a_second_agent_runs_without_a_socket_and_leaves_the_first_its_own(path: Path) -> None:
    async with listening(path, drained):
        async with listening(path, drained):
            pass
        assert await drain(path, 5.0) == ""


async def test_what_a_killed_agent_left_behind_is_replaced(path: Path) -> None:
    server = await asyncio.start_unix_server(lambda reader, writer: None, path)
    server.close()
    assert path.is_socket()
    async with listening(path, drained):
        assert await drain(path, 5.0) == ""


async def test_a_socket_that_cannot_be_bound_does_not_end_the_agent(tmp_path: Path) -> None:
    async with listening(tmp_path / "nowhere" / "agent.sock", drained):
        pass


@pytest.mark.parametrize("line", [b"nonsense\n", b"{}\n", b'{"drain": "NaN"}\n', b'{"drain": -1}\n', b"x" * 5000])
async def test_nonsense_is_answered_and_harms_nobody(path: Path, line: bytes) -> None:
    async with listening(path, drained):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(line)
        assert b"not understood" in await reader.readline()
        writer.close()
        assert await drain(path, 5.0) == ""


async def test_the_command_says_that_the_worker_is_drained(path: Path) -> None:
    async with listening(path, drained):
        ran = await asyncio.to_thread(CliRunner().invoke, agent, ["drain", "--control", str(path)])
    assert ran.exit_code == 0
    assert ran.output == "drained: every connected balancer knows, and nothing is left at this worker's Triton\n"


def test_the_command_ends_with_1_and_the_reason_where_there_is_no_agent(tmp_path: Path) -> None:
    ran = CliRunner().invoke(agent, ["drain", "--control", str(tmp_path / "none.sock")])
    assert ran.exit_code == 1
    assert "no agent listens" in ran.output


@pytest.mark.parametrize("arguments", [[], ["--worker", "w"], ["--balancer", "127.0.0.1:9003"]])
def test_an_agent_needs_a_worker_and_a_balancer(arguments: list[str]) -> None:
    ran = CliRunner().invoke(agent, arguments)
    assert ran.exit_code == 2
    assert "--worker and --balancer" in ran.output
