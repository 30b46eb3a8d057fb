"""`balancer twin` as a shell sees it."""

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from balancer.cli import main as cli
from balancer.kernel.settings import Settings
from dev.reference.logs import simulated_log
from policies.expected_latency import ExpectedLatency
from simulator.compare.statistics import Estimate
from simulator.log.caches import settings_for
from simulator.off_policy.calibrated import ModelFit
from simulator.scenario import load_scenario
from simulator.spec import CacheSpec


def twin(*arguments: object) -> Result:
    return CliRunner().invoke(cli.main, ["twin", *map(str, arguments)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scenario = load_scenario("heterogeneous-bursty")
    folder = tmp_path_factory.mktemp("log")
    simulated_log(folder, scenario.fleet, scenario.arrivals(1, 4000), ExpectedLatency(), 1)
    return folder


def test_a_fleet_like_the_recorded_one_is_its_twin(folder: Path, tmp_path: Path) -> None:
    result = twin(folder, "--json", tmp_path / "twin.json")
    assert result.exit_code == 0, result.output
    assert "A twin: each p50 within 5%, each p99 within 10%, or as near as its own runs are" in result.output
    (model,) = json.loads((tmp_path / "twin.json").read_text())["models"]
    assert (model["model"], model["requests"]) == ("encoder", 3600)
    assert abs(model["p50_error"]["value"]) < 0.05


def test_what_differs_is_named_and_by_how_much(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.off_policy.calibrated.P50_WITHIN", 0.0)
    monkeypatch.setattr("simulator.off_policy.calibrated._of_one_more", lambda by_seed, confidence: 0.0)
    result = twin(folder)
    assert result.exit_code == 1
    assert "Differs: p50 of encoder is" in result.output
    assert "% off, 0% are allowed" in result.output


def test_a_log_of_nothing_is_refused(tmp_path: Path) -> None:
    result = twin(tmp_path)
    assert result.exit_code == 1
    assert str(tmp_path) in result.output


@pytest.mark.parametrize(
    ("entries", "balancers", "sticky", "words"),
    [
        (0, 1, False, ""),
        (400, 1, False, ""),
        (4000, 1, False, "about 4,000 keys, which save 60% of a request: set estimators.key_memory: 4000, it was 300"),
        (1000, 4, False, ""),
        (400, 1, True, "requests.sticky_keys: false lets the policy weigh that, with estimators.key_memory: 400"),
    ],
)
def test_of_caches_it_says_what_to_set(entries: int, balancers: int, sticky: bool, words: str) -> None:
    fleet = dataclasses.replace(
        load_scenario("heterogeneous-bursty").fleet,
        cache=CacheSpec(entries, 0.6),
        balancers=balancers,
        settings=Settings(sticky_keys=sticky),
    )
    assert settings_for(fleet).endswith(words)
    assert bool(settings_for(fleet)) == bool(words)


@pytest.mark.parametrize(
    ("error", "by_chance", "differs"),
    [
        *((0.04, 0.0, False), (0.08, 0.0, True), (0.08, 0.09, False), (0.3, 0.9, False), (float("nan"), 0.1, True)),
        *((-0.45, 0.9, False), (-0.5, 0.9, True)),  # by half too low is as far as by twice too high
    ],
)
def test_what_its_own_runs_differ_by_is_allowed(error: float, by_chance: float, differs: bool) -> None:
    nothing = Estimate(0.0, 0.0, 0.0)
    fit = ModelFit("m", 5000, 0.01, 0.02, Estimate(error, error, error), nothing, by_chance, 0.0)
    assert bool(list(fit.differs())) == differs
    assert list(fit.unsure()) == (["one run's p50 of m is up to 90% off by chance"] if by_chance == 0.9 else [])
