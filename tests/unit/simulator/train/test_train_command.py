"""`balancer train` as a shell sees it: small runs of the real thing, killed and not, in processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import watchfiles
from support.training import SMALL, check_same, policy, train

from balancer.config.policy_options import build_policy
from simulator.pool import TaskPool
from simulator.scenario import load_scenario
from simulator.train import plan as planning
from simulator.train.pgpe import Pgpe
from simulator.train.trainer import read_checkpoint


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed, in one process."""
    out = tmp_path_factory.mktemp("whole") / "run"
    result = train(out, *SMALL, "--jobs", "1")
    assert result.exit_code == 0, result.output
    assert "24/24: " in result.output
    return out


def test_it_writes_a_policy_that_a_balancer_serves(whole: Path) -> None:
    served = build_policy("learned", {"file": str(whole / "policy.npz")})
    assert served.digest == policy(whole).digest
    assert (whole / "tensorboard").is_dir()
    assert (whole / "last.npz").exists()


def test_the_record_says_how_it_was_made_and_how_good_it_is(whole: Path) -> None:
    record = policy(whole).record
    assert record["seed"] == 0
    assert record["scenarios"] == ["stale-reports", "homogeneous-steady"]
    assert record["settings"]["pairs"] == 4
    assert record["decisions"] == 24 * 2 * 4 * 80
    assert [each["iteration"] for each in record["curve"]] == [0, 8, 16, 24]
    assert record["iteration"] == min(record["curve"], key=lambda each: each["cost"])["iteration"]
    assert record["scoreboard"].keys() == {"stale-reports", "homogeneous-steady"}
    value, low, high = record["scoreboard"]["stale-reports"]["wlpr"]["p99"]
    assert low <= value <= high
    assert {"command", "started", "finished", "wall_s", "cpus"} <= record["made"].keys()
    assert record["made"]["command"].startswith("balancer train --out ")
    assert len(record["git"]["hash"]) == 40 or record["git"]["hash"] == "unknown"


def test_the_config_has_all_that_the_run_depends_on(whole: Path) -> None:
    config = json.loads((whole / "config.json").read_text())
    assert config["plan"]["settings"] == policy(whole).record["settings"]
    assert {"git", "versions", "cpus", "inputs", "command"} <= config.keys()


def test_processes_make_no_difference(whole: Path, tmp_path: Path) -> None:
    result = train(tmp_path / "run", *SMALL, "--jobs", "2")
    assert result.exit_code == 0, result.output
    check_same(policy(tmp_path / "run"), policy(whole))
    check_same(policy(tmp_path / "run", "last.npz"), policy(whole, "last.npz"))


def test_another_seed_does(whole: Path, tmp_path: Path) -> None:
    result = train(tmp_path / "run", *SMALL, "--jobs", "1", "--seed", "1")
    assert result.exit_code == 0, result.output
    assert policy(tmp_path / "run", "last.npz").digest != policy(whole, "last.npz").digest


def test_killed_and_resumed_it_ends_with_the_weights_of_a_run_never_killed(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    command = [sys.executable, "-m", "balancer", "train", "--out", str(out), *SMALL, "--jobs", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as run:
        # It is awaited for as long as it runs: on a busy machine its processes take minutes to start.
        for _ in watchfiles.watch(out, rust_timeout=1_000, yield_on_timeout=True, debounce=1, step=1):
            assert run.poll() is None, "it ended without a checkpoint"
            found = read_checkpoint(out)
            if found is not None and found.algorithm["iteration"] >= 2:
                break
        processes = psutil.Process(run.pid).children(recursive=True)
        run.kill()
        assert run.wait() == -signal.SIGKILL
    assert processes
    assert not psutil.wait_procs(processes, timeout=30)[1], "its processes live on"
    found = read_checkpoint(out)
    assert found is not None
    assert not (out / "policy.npz").exists()
    result = train(out, "--resume", "--jobs", "1")
    assert result.exit_code == 0, result.output
    assert policy(out).record["made"]["resumed"] == 1
    check_same(policy(out), policy(whole))
    check_same(policy(out, "last.npz"), policy(whole, "last.npz"))


def test_resumed_with_no_minutes_left_it_ends_with_the_best_so_far(whole: Path, tmp_path: Path) -> None:
    first = train(tmp_path / "run", *SMALL, "--jobs", "1", "--minutes", "0")
    assert first.exit_code == 0, first.output
    assert "the time is over" in first.output
    assert policy(tmp_path / "run").record["iteration"] == 0
    # Given time again, it goes on, to the same end.
    result = train(tmp_path / "run", "--resume", "--jobs", "1")
    assert result.exit_code == 0, result.output
    assert policy(tmp_path / "run", "last.npz").digest == policy(whole, "last.npz").digest


def test_stopped_by_hand_it_writes_the_best_so_far_and_goes_on_to_the_same_end(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(self: Pgpe, pool: TaskPool) -> dict[str, float]:
        if self.iteration == 9:
            raise KeyboardInterrupt
        return iterate(self, pool)

    iterate = Pgpe.iterate
    with monkeypatch.context() as patch:
        patch.setattr(Pgpe, "iterate", stopped)
        patch.setattr("simulator.commands.train._TELL_EVERY_S", 0.0)
        first = train(tmp_path / "run", *SMALL, "--jobs", "1")
    assert first.exit_code == 130, first.output
    assert "go on with: balancer train --out" in " ".join(first.output.split())
    assert "the start is judged" in first.output
    assert "iteration 8 of 24 is done, part 1 of" in first.output
    assert "left" in first.output
    record = policy(tmp_path / "run").record
    assert (record["ended"], record["scoreboard"]) == ("stopped by hand", {})
    assert record["iteration"] in (0, 8)
    build_policy("learned", {"file": str(tmp_path / "run" / "policy.npz")})
    result = train(tmp_path / "run", "--resume", "--jobs", "1")
    assert result.exit_code == 0, result.output
    check_same(policy(tmp_path / "run"), policy(whole))


def test_stopped_while_the_scoreboard_is_made_it_writes_the_policy(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*arguments: Any) -> None:
        raise KeyboardInterrupt

    out = Path(shutil.copytree(whole, tmp_path / "run"))
    (out / "policy.npz").unlink()
    with monkeypatch.context() as patch:
        patch.setattr("simulator.train.trainer.scoreboard", stopped)
        result = train(out, "--resume", "--jobs", "1")
    assert result.exit_code == 130, result.output
    assert policy(out).digest == policy(whole).digest
    assert policy(out).record["scoreboard"] == {}


def test_a_folder_that_is_in_use_is_left_alone(whole: Path) -> None:
    before = (whole / "policy.npz").read_bytes()
    result = train(whole, *SMALL)
    assert result.exit_code == 2
    assert f"--out {whole} is not empty: name another folder, or go on with the run in it by --resume" in result.output
    assert (whole / "policy.npz").read_bytes() == before


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path: Path) -> None:
    result = train(tmp_path, "--resume")
    assert result.exit_code == 2
    assert "config.json is not there" in result.output
    assert "leave --resume out" in result.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--seed", "3"), "seed is 3 here and 0 there"),
        (("--set", "pairs=5"), "pairs is 5 here and 4 there"),
        (("--iterations", "25"), "iterations is 25 here and 24 there"),
        (("--scenarios", "churn"), "scenarios is churn here and stale-reports, homogeneous-steady there"),
    ],
)
def test_a_run_is_not_resumed_with_other_options(whole: Path, options: tuple[str, ...], words: str) -> None:
    result = train(whole, "--resume", *options)
    assert result.exit_code == 2
    assert words in result.output
    assert "leave them out, or begin anew in another folder" in result.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--scenarios", "stale-report"), 'did you mean "stale-reports"?'),
        (("--set", "pears=3"), "there is no setting 'pears'; did you mean \"pairs\"?"),
        (("--set", "pairs"), "must be setting=value"),
        (("--set", "pairs=many"), "pairs is 'many': it must be a valid integer"),
        (("--init", "missing.npz"), "init is missing.npz, which cannot be read (No such file or directory)"),
        (("--jobs", "2", "--ray", "local"), "leave --jobs out"),
        (("--profile", "pyproject.toml"), "--profile is given, which goes with --from-log"),
        (("--unchecked",), "--unchecked is given, which goes with --from-log"),
        (("--fleet", "churn", "--scenarios", "churn"), "scenarios and fleet are given: train for many fleets, or for"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    (tmp_path / "pyproject.toml").touch()
    options = tuple(str(tmp_path / each) if each.endswith(".toml") else each for each in options)
    result = train(tmp_path / "run", *options)
    assert result.exit_code != 0
    assert words in " ".join(result.output.split())
    assert not (tmp_path / "run").exists()


def test_without_ray_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = train(tmp_path / "run", *SMALL, "--ray", "local")
    assert result.exit_code == 1
    assert "train needs the Python module ray, which is not installed: pip install 'balancer[ray]'" in result.output


def test_the_default_is_the_train_split_without_what_routing_does_not_decide() -> None:
    names = planning.make_plan({}).scenarios
    assert "heterogeneous-bursty" in names
    assert not set(names) & set(planning.NOT_TRAINED_ON)
    assert not any(load_scenario(name).split == "held-out" for name in names)
