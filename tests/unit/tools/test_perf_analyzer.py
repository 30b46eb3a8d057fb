"""What perf_analyzer prints, read. The texts are its own, of version 2.46."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from balancer.errors import OperatorError
from tools.perf_analyzer import PerfAnalyzer, find_perf_analyzer, report

TWO_LEVELS = """*** Measurement Settings ***
  Batch size: 1

Request concurrency: 1
  Client:
    Request count: 765
    Throughput: 293.112 infer/sec
    Response Throughput: 9379.57 infer/sec
    Avg latency: 3264 usec (standard deviation 2342 usec)
    p50 latency: 2641 usec
    p99 latency: 8000 usec

  Server:
    Inference count: 770
    Execution count: 770
    Successful request count: 770
    Avg request latency: 978 usec (overhead 2 usec + queue 618 usec + compute input 14 usec + compute infer 211 usec \
+ compute output 133 usec)

Request concurrency: 8
  Client:
    Request count: 8000
    Throughput: 4526.52 infer/sec
    p50 latency: 1423 usec
    p99 latency: 3000 usec
  Server:
    Successful request count: 8001
    Avg request latency: 9 usec (overhead 4 usec + queue 1 usec + compute input 1 usec + compute infer 2 usec \
+ compute output 1 usec)

Inferences/Second vs. Client Average Batch Latency
Concurrency: 1, throughput: 293.112 infer/sec, latency 3264 usec
"""
ENDED_EARLY = """Request concurrency: 8
Failed to retrieve results from inference request.
Thread [0] had error: no worker
"""


def test_each_level_is_read_with_the_servers_part() -> None:
    found = report(0, TWO_LEVELS)
    one, eight = found.levels
    assert (one.concurrency, one.requests, one.served) == (1, 765, 770)
    assert (one.rate_per_s, one.responses_per_s) == (293.112, 9379.57)
    assert (one.p50_us, one.p99_us, one.queue_us, one.compute_us) == (2641, 8000, 618, 14 + 211 + 133)
    assert (eight.concurrency, eight.requests, eight.served) == (8, 8000, 8001)
    assert (eight.rate_per_s, eight.responses_per_s) == (4526.52, 4526.52)
    assert found.warnings == ()


def test_a_run_that_ended_early_has_no_level_and_its_lines_are_warnings() -> None:
    found = report(99, ENDED_EARLY)
    assert found.levels == ()
    assert found.warnings == (
        "Failed to retrieve results from inference request.",
        "Thread [0] had error: no worker",
    )
    assert report(0, TWO_LEVELS + "WARNING: overhead is high\n").warnings == ("WARNING: overhead is high",)


async def test_the_program_gets_its_libraries_and_its_status_is_kept(tmp_path: Path) -> None:
    program = tmp_path / "fake_perf_analyzer"
    script = "import os, sys\nprint('warning', os.environ['LD_LIBRARY_PATH'], *sys.argv[1:])\nsys.exit(3)\n"
    program.write_text(f"#!{sys.executable}\n{script}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    found = await PerfAnalyzer(program, (tmp_path / "lib",)).run("-m", "digits")
    assert found.status == 3
    (line,) = found.warnings
    assert line.startswith(f"warning {tmp_path / 'lib'}")
    assert line.endswith("-m digits")


def test_what_cannot_be_fetched_is_said_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.perf_analyzer._PIP", (sys.executable, "-c", "raise SystemExit('no index')"))
    with pytest.raises(OperatorError, match=r"tritonclient==2\.46\.0.* could not be fetched .*no index"):
        find_perf_analyzer(tmp_path / "there")
    assert list(tmp_path.iterdir()) == []
