"""`balancer replay` as a shell sees it."""

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.decision_logs import recorded

from balancer.cli import main as cli
from policies.round_robin import RoundRobin


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.main, ["replay", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    recorded(tmp_path / "log", RoundRobin(), requests=60)
    return tmp_path / "log"


def test_the_same_is_printed_and_written(folder: Path, tmp_path: Path) -> None:
    result = run(folder, "--json", tmp_path / "found.json")
    assert result.exit_code == 0, result.output
    assert "All are the same, bit for bit." in result.output
    assert "round_robin" in result.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["exact"], found["mismatches"], found["policy"]) == (True, [], None)
    assert found["decisions"] == sum(compared["decisions"] for compared in found["compared"]) > 0
    assert 0 < found["latency_mean_s"] < 1


def test_a_difference_is_an_exit_code(folder: Path) -> None:
    (file,) = folder.iterdir()
    lines = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    changed = next(line["decision"] for line in lines if "decision" in line)
    changed["number"] += 1
    file.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    result = run(folder)
    assert result.exit_code == 1
    assert "Not the same; the first differences:" in result.output
    assert f"process 0, number {changed['number']}: probabilities" in result.output


def test_another_policy(folder: Path, tmp_path: Path) -> None:
    result = run(folder, "--policy", "power_of_two:choices=3,weighted=true", "--json", tmp_path / "found.json")
    assert result.exit_code == 0, result.output
    assert "Decided again by power_of_two" in result.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["policy"] == {"name": "power_of_two", "options": {"choices": 3, "weighted": True}}
    assert 0 < found["agreement"] < 1
    assert found["exact"] is None


@pytest.mark.parametrize(
    ("policy", "words", "code"),
    [
        ("wlp", 'did you mean "wlpr"?', 2),
        ("power_of_two:choices=0", "choices: 0 is not allowed: must be greater than or equal to 1", 1),
        ("power_of_two:choice=2", 'unknown field (its value is 2); did you mean "choices"?', 1),
    ],
)
def test_a_policy_that_is_none_is_refused(folder: Path, policy: str, words: str, code: int) -> None:
    result = run(folder, "--policy", policy)
    assert (result.exit_code, words in result.output) == (code, True), result.output


def test_what_cannot_be_read_is_a_message(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert (result.exit_code, "holds no decisions-*" in result.output) == (1, True), result.output


def test_a_cut_file_is_named(folder: Path) -> None:
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:-100])
    result = run(folder)
    assert result.exit_code == 0
    assert "ends in the middle of line" in result.stderr
