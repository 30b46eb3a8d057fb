"""Processes are kept running, but not tried for ever."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from balancer.server import supervisor

pytestmark = pytest.mark.integration

_PATIENCE_S = 90


def run(folder: Path, work: str) -> subprocess.CompletedProcess[str]:
    """A supervisor of two processes in a process of its own; `work` is the body of what they do."""
    program = folder / "supervised.py"
    program.write_text(
        "import os, pathlib, signal, sys, time\n"
        "from balancer.server import supervisor\n"
        "from balancer.errors import OperatorError\n"
        f"folder = pathlib.Path({str(folder)!r})\n"
        "def starts(number):\n"
        "    with (folder / f'starts-{number}').open('a') as file:\n"
        "        file.write('x')\n"
        "    return (folder / f'starts-{number}').stat().st_size\n"
        "def work(number, serving):\n"
        f"{textwrap.indent(textwrap.dedent(work), '    ')}\n"
        "if __name__ == '__main__':\n"
        "    supervisor._FIRST_PAUSE_S = 0.001\n"
        "    try:\n"
        "        supervisor.Supervisor(2, work).run()\n"
        "    except OperatorError as error:\n"
        "        sys.exit(f'Error: {error}')\n"
    )
    command = [sys.executable, str(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)


def starts(folder: Path, number: int) -> int:
    return (folder / f"starts-{number}").stat().st_size


def test_one_that_never_served_ends_all_with_its_message(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        """
        starts(number)
        if number:
            raise OperatorError("the port is taken")
        serving()
        time.sleep(1000)
        """,
    )
    assert (ended.returncode, ended.stderr) == (1, "Error: the port is taken\n")
    assert starts(tmp_path, 1) == 1


def test_one_that_ends_without_a_word_is_named(tmp_path: Path) -> None:
    ended = run(tmp_path, "starts(number)\nos._exit(3) if number else time.sleep(1000)")
    assert (ended.returncode, "process 1 ended with status 3 before it served" in ended.stderr) == (1, True)


def test_one_that_cannot_serve_again_is_given_up_and_the_other_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = run(
        tmp_path,
        f"""
        count = starts(number)
        if number == 0 and count == 1:
            serving()
            os._exit(1)
        if number == 0:
            if count == 1 + {supervisor._MOST_STARTS}:
                (folder / 'last.new').write_text(str(os.getpid()))
                (folder / 'last.new').rename(folder / 'last')
            raise OperatorError('the port is taken')
        serving()
        last = folder / 'last'
        while not last.exists() or pathlib.Path('/proc', last.read_text()).exists():
            time.sleep(0.01)
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(1000)
        """,
    )
    assert (ended.returncode, starts(tmp_path, 0), starts(tmp_path, 1)) == (0, 1 + supervisor._MOST_STARTS, 1)
    assert "process given up, it did not get to serve: the port is taken" in ended.stderr
