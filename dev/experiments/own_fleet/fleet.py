"""One fleet: its log under `expected_latency`, what `balancer train --from-log` makes of it, and what that is worth."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from balancer.config.policy_options import read_policy_file
from dev.experiments.language import rivals as of_language_models
from dev.experiments.language.distribution import scenario as language_models
from dev.experiments.sealed.opening import Task, Watch, Way, execute, unanswered
from dev.experiments.sealed.rivals import points, read_tuned, rivals, tuned_name
from dev.reference.logs import simulated_log
from policies import BUILTIN
from policies.base import Policy
from policies.expected_latency import ExpectedLatency
from policies.learned import Learned
from simulator.compare.metrics import RunMetrics, measure
from simulator.compare.statistics import ratio
from simulator.log.fleet import calibrate
from simulator.off_policy.calibrated import twin_of
from simulator.pool import LocalPool
from simulator.run import run
from simulator.scenario import Scenario
from simulator.train.distribution import scenario
from simulator.train.plan import course_over, log_scenarios, make_plan
from simulator.train.trainer import train, write_whole
from simulator.train.validation import learned, nothing_to_gain
from simulator.workload.draws import ONE

DEFAULTS, TUNED, NUMBERS, TRAINED, BARE = "defaults", "tuned once", "numbers", "trained", "trained, no guard"
LABELS = (DEFAULTS, TUNED, NUMBERS, TRAINED, BARE)
GENERATE_EVERY = 4
"""One fleet in so many is of language models."""
KNOWN = "true fleet known"
RESULT, _KNOWN = "result.json", "known.json"
LOGGED_REQUESTS = 40_000
_LOG_SEED = 1 << 21
"""Of the requests that the log is of: nobody is judged by them."""
_JUDGED_FROM = (1 << 21) + 1000
ITERATIONS = 120
TRAINING = ("--iterations", str(ITERATIONS), "--minutes", "10")
"""At most ten minutes of one core, as much as five minutes of two."""
_NUMBERS_ALONE = (*TRAINING, "--iterations", "24", "--set", "coefficients_share=1")
"""As many as the whole training gives them."""
_FIELD = of_language_models.FIELD
_TUNED_BY, _TUNED_BY_REQUESTS = (0, 1, 2), 3000


@dataclass(frozen=True, slots=True)
class Fleet:
    seed: int
    number: int
    folder: Path
    judged_by: int
    """Seeds."""

    @property
    def scenario(self) -> Scenario:
        generates = self.number % GENERATE_EVERY == GENERATE_EVERY - 1
        return (language_models if generates else scenario)(self.seed, self.number)

    @property
    def opened(self) -> bool:
        return (self.folder / RESULT).exists()

    def result(self) -> dict[str, Any]:
        """What came out, some minutes."""
        found: dict[str, Any] = self._once(RESULT, self._worked_out)
        return found

    def known(self) -> list[float]:
        """Train on the true fleet and its true workload in place of the log's, some minutes. Returns the ratios of mean
        and p99 to the defaults, without a guard.
        """
        found: list[float] = self._once(_KNOWN, self._trained_on_the_truth)
        return found

    def _once(self, name: str, work: Callable[[], Any]) -> Any:
        """What is in the file of the fleet's folder; where it is not there yet, it is worked out and written."""
        file = self.folder / name
        if not file.exists():
            write_whole(file, (json.dumps(work(), indent=1) + "\n").encode())
        return json.loads(file.read_text(encoding="utf-8"))

    def _worked_out(self) -> dict[str, Any]:
        given = self.scenario
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        requests = given.arrivals(_LOG_SEED, given.requests if given.fleet.generates else LOGGED_REQUESTS)
        log = simulated_log(self.folder / "log", given.fleet, requests, ExpectedLatency(), _LOG_SEED)
        try:
            made = twin_of(log, calibrate(log))
            differs = [why for model in made.models for why in model.differs()]
            models = {model.model: [model.p50_error.value, model.p99_error.value] for model in made.models}
        except ValueError as error:
            differs, models = [str(error)], {}
        trained, took_s = self._trained("trained", TRAINING)
        refused = None if isinstance(trained, Learned) else trained
        numbers = self._trained("numbers", _NUMBERS_ALONE)[0] if len(given.fleet.models) > 1 else trained
        policies: dict[str, tuple[Policy, Way]] = {
            DEFAULTS: (ExpectedLatency(), "plain"),
            TUNED: (_tuned_once(given), "plain"),
            NUMBERS: _in_use(numbers),
            TRAINED: _in_use(trained),
            BARE: (ExpectedLatency() if isinstance(trained, str) else trained, "plain"),
        }
        if given.fleet.generates:
            field = tuned_on(self.folder / "log") if refused is None else {name: BUILTIN[name]() for name in _FIELD}
            policies |= {name: (policy, "plain") for name, policy in field.items()}
        ran = {label: self._judged(given, label, *how) for label, how in policies.items()}
        judged, watch = {label: metrics for label, (metrics, _) in ran.items()}, ran[TRAINED][1]
        return {
            "fleet": _told(given),
            "differs": differs,
            "twin": models,
            "refused": refused,
            "nothing_to_gain": refused is None and watch is None,
            "gain_in_twin": _gain_in_twin(trained),
            "train_s": round(took_s),
            "ratios": {label: list(_ratios(one, judged[DEFAULTS])) for label, one in judged.items()},
            "first_tokens": {label: list(_first_tokens(one, judged[DEFAULTS])) for label, one in judged.items()},
            "unanswered": {label: unanswered(one) for label, one in judged.items()},
            "by_baseline": float(watch.by_baseline.mean()) if watch else 0.0,
            "guard_saw": dict(watch.reasons) if watch else {},
        }

    def _trained_on_the_truth(self) -> list[float]:
        given, folder = self.scenario, self.folder / "known"
        plan = make_plan({"fleet": given.name, "settings": {"iterations": ITERATIONS}})
        folder.mkdir(exist_ok=True)
        found = train(course_over(plan, [given], [given]), folder, LocalPool()).checkpoint.best
        by_default, _ = self._judged(given, DEFAULTS, ExpectedLatency(), "plain")
        judged, _ = self._judged(given, KNOWN, learned(found), "plain")
        return list(_ratios(judged, by_default))

    def _trained(self, name: str, further: tuple[str, ...]) -> tuple[Learned | str, float]:
        """Run `balancer train` on the log, without the check. Returns the policy, or where it refuses its last line;
        and the seconds that it took.
        """
        out, began_s = self.folder / name, time.monotonic()
        command = ("train", "--out", str(out), "--from-log", str(self.folder / "log"), "--unchecked", "--jobs", "1")
        with open(self.folder / f"{name}.log", "wb") as said:
            whole = [sys.executable, "-m", "balancer", *command, *further]
            ended = subprocess.run(whole, stdout=said, stderr=said, check=False)
        if ended.returncode != 0:
            return Path(said.name).read_text(encoding="utf-8").strip().splitlines()[-1], time.monotonic() - began_s
        policy = Learned(file=str(out / "policy.npz")).with_files(read_policy_file)
        assert isinstance(policy, Learned)
        return policy, time.monotonic() - began_s

    def _judged(self, given: Scenario, label: str, policy: Policy, way: Way) -> tuple[RunMetrics, Watch | None]:
        seeds = tuple(range(_JUDGED_FROM, _JUDGED_FROM + self.judged_by))
        return execute(Task(self.number, label, given, policy, way, seeds, given.requests))


def _in_use(trained: Learned | str) -> tuple[Policy, Way]:
    """What a user serves: the defaults where training refuses the log or says that there is nothing to gain."""
    if isinstance(trained, str) or nothing_to_gain(trained.loaded.record["scoreboard"]):
        return ExpectedLatency(), "plain"
    return trained, "guarded"


def _gain_in_twin(trained: Learned | str) -> list[float]:
    if isinstance(trained, str):
        return [1.0]
    record = trained.loaded.record
    if "log" in record["scoreboard"]:
        return list(record["scoreboard"]["log"]["expected_latency"]["mean"])
    # It was out of time; what chose the policy remains.
    return [each["mean"] for each in record["curve"] if each["iteration"] == record["iteration"]]


def _told(given: Scenario) -> dict[str, Any]:
    fleet = given.fleet
    return {
        "name": given.name,
        "models": len(fleet.models),
        "generates": fleet.generates,
        "workers": len(fleet.workers),
        "balancers": fleet.balancers,
        "keys": not fleet.settings.sticky_keys,
        "faults": [fault.kind for fault in fleet.faults],
        "cold": fleet.cold.executions > 0,
        "hidden_work": any(traffic.work != ONE for traffic in given.workload.traffic),
    }


def _ratios(own: RunMetrics, other: RunMetrics) -> Iterator[float]:
    """Of mean and p99, geometric means over the seeds."""
    for figure in ("mean_s", "p99_s"):
        yield ratio(getattr(own.latency, figure), getattr(other.latency, figure)).value


def _first_tokens(own: RunMetrics, other: RunMetrics) -> Iterator[float]:
    """The same of first tokens; nothing where no model generates."""
    for figure in ("first_mean_s", "first_p99_s"):
        one, another = getattr(own, figure), getattr(other, figure)
        if np.isfinite(one).all() and np.isfinite(another).all():
            yield ratio(one, another).value


def _tuned_once(given: Scenario) -> Policy:
    if given.fleet.generates:
        return ExpectedLatency(**of_language_models.read_tuned()["expected_latency"]["chosen"]["both"])
    return rivals(read_tuned())[tuned_name("expected_latency")].policy


def tuned_on(log: Path) -> dict[str, Policy]:
    """The field's rules for language models, by name, each tuned by its grid on what training sees of a log."""
    seen = log_scenarios(make_plan({"from_log": str(log), "unchecked": True})).seen
    arrivals = [seen.arrivals(seed, min(seen.requests, _TUNED_BY_REQUESTS)) for seed in _TUNED_BY]

    def cost(policy: Policy) -> float:
        found = of_language_models.figures(measure(run(seen.fleet, arrivals, policy, seeds=_TUNED_BY)))
        return float(found.mean(axis=1) @ of_language_models.GOALS["both"])

    found = {}
    for name in _FIELD:
        tried = [{}, *points(of_language_models.GRIDS.get(name, {}))]
        found[name] = min((BUILTIN[name](**options) for options in tried), key=cost)
    return found
