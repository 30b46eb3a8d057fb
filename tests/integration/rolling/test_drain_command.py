"""`balancer drain` and `undrain` as a shell sees them, against real balancer processes."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from support.balancer_alone import WORKER, BalancerAlone
from support.certificates import Authority
from support.running import running
from support.waiting import eventually

from balancer.cli.check import RESTARTS
from balancer.files.schema import split_address
from balancer.stack.process import Child, free_ports

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

NAME = "balancer.test"
W0 = str(WORKER["name"])


@dataclass
class Shell:
    """Runs commands."""

    directory: Path
    runs: int = 0

    async def run(self, *arguments: str) -> tuple[int, str]:
        """Exit status and all output."""
        self.runs += 1
        log_path = self.directory / f"command-{self.runs}.log"
        command = Child(arguments, log_path=log_path)
        await command.start()
        return await command.wait(), log_path.read_text()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def balancer(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BalancerAlone]:
    balancer = BalancerAlone(tmp_path_factory.mktemp("drained"))
    async with running(balancer):
        yield balancer


async def drained(balancer: BalancerAlone) -> tuple[bool, bool]:
    """Whether the worker drains, and whether by hand."""
    worker = await balancer.worker()
    return worker["draining"], worker["drained_by_hand"]


async def shown(shell: Shell, balancer: BalancerAlone) -> str:
    """The worker's state as `balancer top` has it."""
    _, output = await shell.run("top", "--once", "--balancer", balancer.admin)
    (cells,) = (re.split(" {2,}", line.strip()) for line in output.splitlines() if line.split()[:1] == [W0])
    return cells[1]


async def test_a_worker_is_drained_and_undrained(balancer: BalancerAlone, shell: Shell) -> None:
    at = ("--balancer", balancer.admin)
    assert await shell.run("drain", W0, *at) == (0, f"{W0} gets nothing new\n")
    assert await drained(balancer) == (True, True)
    assert await balancer.metric("balancer_worker_drained", worker=W0) == 1
    assert await shown(shell, balancer) == "drained by hand"
    assert await shell.run("drain", W0, *at, "--wait") == (0, f"{W0} is drained: nothing is left there\n")
    assert await shell.run("undrain", W0, *at) == (0, f"{W0} is no longer drained by hand\n")
    assert await drained(balancer) == (False, False)
    assert await shown(shell, balancer) != "drained by hand"
    assert '"worker drained by hand"' in balancer.log_path.read_text()


async def test_a_name_stands_for_its_addresses(balancer: BalancerAlone, shell: Shell) -> None:
    _, port = split_address(balancer.admin)
    assert (await shell.run("drain", W0, "--balancer", f"localhost:{port}"))[0] == 0
    assert await drained(balancer) == (True, True)
    assert (await shell.run("undrain", W0, "--balancer", f"localhost:{port}"))[0] == 0
    status, output = await shell.run("drain", W0, "--balancer", f"no-such-name.invalid:{port}")
    assert status == 1
    assert f"Error: no-such-name.invalid:{port}: " in output


async def test_one_that_cannot_be_reached_is_shown_and_the_others_know(balancer: BalancerAlone, shell: Shell) -> None:
    absent = f"127.0.0.1:{free_ports(1)[0]}"
    status, output = await shell.run("drain", W0, "--balancer", absent, "--balancer", balancer.admin, "--wait")
    assert status == 1
    assert f"Error: {absent}: " in output
    assert await drained(balancer) == (True, True)


async def test_with_certificates_an_admins_drains_and_no_other(tmp_path: Path, shell: Shell) -> None:
    authority = Authority(tmp_path / "certificates")
    section = authority.issue("balancer", dns=NAME).section(authority)
    balancer = BalancerAlone(tmp_path, tls={"admin": section})
    listens = split_address(balancer.admin)
    file = tmp_path / "other.yaml"
    file.write_text("processes: 2")
    try:
        await balancer.spawn()
        await eventually(lambda: _listens(*listens), "it listens")
        arguments = ("--balancer", balancer.admin, "--tls-ca", str(authority.file), "--tls-name", NAME)
        for name, uri, status in (
            ("agent", "spiffe://balancer/agent/w0", 1),
            ("admin", "spiffe://balancer/admin", 0),
        ):
            shown = authority.issue(name, uri=uri)
            pair = ("--tls-cert", str(shown.cert), "--tls-key", str(shown.key))
            found, output = await shell.run("drain", W0, *arguments, *pair)
            assert found == status, output
            # The same options, for the commands that only read.
            found, output = await shell.run("top", "--once", *arguments, *pair)
            assert found == status, output
            found, output = await shell.run("check", str(file), "--against", *arguments[1:], *pair)
            assert found == (RESTARTS if status == 0 else 1), output
        assert '"by": "spiffe://balancer/admin"' in balancer.log_path.read_text()
    finally:
        await balancer.stop()


async def _listens(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True
