import asyncio
import json
import pathlib
import shlex
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from support.fake_triton import FakeTriton, serving

from balancer.load import command
from balancer.load.workload import LoadWorkload


def planned(arguments: str) -> LoadWorkload:
    return command.plan(command.load.make_context("load", shlex.split(arguments)).params)[0]


def test_a_plan_is_equal_for_a_seed_and_includes_the_warm_up() -> None:
    options = "--model a:3 --model b --rate 300 --duration 2 --warmup 1 --arrivals bursty --seed"
    first, again, other = (planned(f"{options} {seed}") for seed in (5, 5, 6))
    assert np.array_equal(first.time_s, again.time_s)
    assert np.array_equal(first.model, again.model)
    assert 2 < first.time_s[-1] < 3
    assert not np.array_equal(first.model[:100], other.model[:100])


def test_a_trace_is_rescaled_and_cut(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time_s,model,rows,key\n" + "".join(f"{i},{'ab'[i % 2]},{1 + i % 3},k{i}\n" for i in range(100)))
    workload = planned(f"--trace {path} --rate 10 --duration 5 --deadline-ms 20 --model b@5 --model a")
    assert len(workload) == 50
    assert workload.models == ("a", "b")
    assert workload.rows[:3].tolist() == [1, 2, 3]
    assert workload.keys[:2] == ("k0", "k1")
    assert workload.deadline_s[:2].tolist() == [0.02, 0.005]
    assert len(planned(f"--trace {path}")) == 100
    with pytest.raises(ValueError, match="sends to b, which no --model names"):
        planned(f"--trace {path} --model a")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("", "no --model is given"),
        ("--model a:x", "weight in 'a:x'"),
        ("--model a --rows 0", "rows is '0'"),
        ("--model a --send-deadline", "add --deadline-ms"),
        ("--model a --arrivals closed --rate 5", "leave --rate"),
    ],
)
def test_options_that_do_not_fit_are_named(arguments: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        planned(arguments)


def test_a_bad_option_ends_with_its_name_and_no_traceback() -> None:
    result = CliRunner().invoke(command.load, ["--model", "a:x"])
    assert result.exit_code == 1
    assert "weight in 'a:x' is 'x'" in result.output


async def test_a_run_prints_a_table_and_writes_json(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "numbers.json"
    async with serving(FakeTriton()) as url:
        arguments = ["--url", url, "--model", "echo:2@10000", "--duration", "0.4", "--json", str(path)]
        program = "from balancer.load.command import load; load()"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    assert "echo" in output.decode()
    numbers = json.loads(path.read_text())
    assert numbers["total"]["errors"] == {}
    assert numbers["total"]["within_deadline"] == 1
    assert (
        numbers["total"]["requests"]
        == numbers["models"]["echo"]["requests"]
        == numbers["workers"]["fake-0"]["requests"]
    )
    assert numbers["options"]["seed"] == 0
