"""`balancer evaluate` as a shell sees it."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.decision_logs import recorded, write
from support.fleets import make_router

from balancer.cli import main as cli
from balancer.config.profile_file import ModelProfile, Profile, ProfilePoint, dump_profile
from balancer.scheduler.events import Finished
from policies.base import Request
from policies.power_of_two import PowerOfTwo

pytestmark = pytest.mark.timeout(1200)  # whichever test comes first to the engine compiles it


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.main, ["evaluate", *map(str, arguments)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    recorded(folder, PowerOfTwo(), requests=500)
    return folder


def test_help_has_examples() -> None:
    result = run("--help")
    assert result.exit_code == 0, result.output
    assert "  balancer evaluate --log decisions/" in result.output


def test_tables_words_and_numbers(folder: Path, tmp_path: Path) -> None:
    numbers = tmp_path / "evaluation.json"
    targets = ("--policy", "least_requests", "--policy", "expected_latency:temperature=0.5")
    result = run("--log", folder, *targets, "--seeds", 2, "--json", numbers)
    assert result.exit_code == 0, result.output
    for words in ("What the log can tell", "One decision changed", "calibration error", "a one-step deviation"):
        assert words in result.stdout
    found = json.loads(numbers.read_text())
    names = ["least_requests", "expected_latency:temperature=0.5"]
    assert [each["policy"] for each in found["one_step"]] == names
    assert [each["policy"] for each in found["verdicts"]] == names
    assert [each["policy"] for each in found["simulation"]["runs"]] == ["(as logged)", *names]
    assert found["log"]["logging"][0]["policy"] == "power_of_two"
    assert found["log"]["evaluated"] + found["log"]["without_outcome"] <= found["log"]["decisions"]
    assert found["assumptions"]
    assert found["command"].startswith("balancer evaluate --log ")
    assert all(each["one_step"] in ("good", "with care", "not") for each in found["verdicts"])


def test_without_simulation(folder: Path) -> None:
    result = run("--log", folder, "--policy", "wlpr", "--no-simulation", "--clip", "5")
    assert result.exit_code == 0, result.output
    assert "Not simulated: not asked for." in result.stdout
    assert "calibration error" not in result.stdout


def test_what_cannot_be_simulated_is_still_estimated(tmp_path: Path) -> None:
    router = make_router(3, PowerOfTwo())
    files, recording = write(tmp_path, router, share=0.5)
    for number in range(200):
        made = router.route(Request("m"), number * 0.01)
        recording.ended(Finished(number, made.worker, 0.01, True), number * 0.01 + 0.01)
    files.close(wait_s=30)
    result = run("--log", tmp_path, "--policy", "wlpr")
    assert result.exit_code == 0, result.output
    assert "Not simulated: the log has a share of 0.5" in result.stdout.replace("\n", " ")


def edited(folder: Path, to: Path, change: Callable[[dict[str, Any]], bool]) -> Path:
    """The log with every line for which `change` says so, after it had its way with it."""
    for file in folder.iterdir():
        kept = [line for line in map(json.loads, gzip.decompress(file.read_bytes()).splitlines()) if change(line)]
        (to / file.name).write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in kept).encode()))
    return to


def _without_propensity(line: dict[str, Any]) -> bool:
    if "decision" in line and line["decision"]["worker"] is not None:
        line["decision"]["propensity"] = 0.0
    return True


def _without_probabilities(line: dict[str, Any]) -> bool:
    if "decision" in line:
        del line["decision"]["probabilities"]
    return True


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda line: "outcome" not in line, "the log has outcomes of 0 of"),
        (_without_propensity, "is 0, which is no probability of a pick: give a log that this balancer wrote"),
        (_without_probabilities, "is damaged (KeyError: 'probabilities')"),
        (lambda line: "decision" not in line, "the log has no decision of a policy in force"),
    ],
    ids=["outcomes", "propensities", "probabilities", "decisions"],
)
def test_a_log_that_lacks_something_is_refused(
    folder: Path, tmp_path: Path, change: Callable[[dict[str, Any]], bool], words: str
) -> None:
    result = run("--log", edited(folder, tmp_path, change), "--policy", "wlpr")
    assert (result.exit_code, words in result.output.replace("\n", " ")) == (1, True), result.output


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--log", "nowhere", "--policy", "wlpr"), 2, "Path 'nowhere' does not exist"),
        (("--log", ".", "--policy", "wlp"), 2, "'wlp': there is no such policy; did you mean \"wlpr\"?"),
        (("--log", ".", "--policy", "power_of_two:choices=0"), 1, "choices: 0 is not allowed"),
        (("--log", ".", "--policy", "wlpr"), 1, "holds no decisions-*"),
        (("--log", "."), 2, "Missing option '--policy'"),
        (("--log", ".", "--policy", "wlpr", "--clip", "0"), 2, "0.0 is not in the range x>0"),
        (("--log", ".", "--policy", "wlpr", "--json", "no/such/file.json"), 2, "the folder no/such does not exist"),
        (("--log", ".", "--policy", "wlpr", "--profile", "none.yaml"), 1, "none.yaml"),
    ],
)
def test_what_does_not_fit_is_named(
    arguments: tuple[str, ...], code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert (result.exit_code, words in result.output) == (code, True), result.output


def test_a_profile_is_taken(folder: Path, tmp_path: Path) -> None:
    point = ProfilePoint(rows=1, mean_s=5.0, executions=9)
    models = tuple(
        ModelProfile(model=model, version="1", max_batch_rows=4, instances=1, points=(point,))
        for model in ("bert", "tft")
    )
    profile = Profile(device="gpu-0", measured_at="2026-01-01T00:00:00", server="triton", models=models)
    path, numbers = tmp_path / "gpu-0.yaml", tmp_path / "numbers.json"
    path.write_text(dump_profile(profile))
    arguments = ("--log", folder, "--policy", "wlpr", "--seeds", 1, "--profile", path, "--json", numbers)
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    # Executions of five seconds are far from what the log has.
    assert json.loads(numbers.read_text())["simulation"]["mean_error"]["value"] > 1
