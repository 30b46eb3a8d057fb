"""One fleet: its log under `expected_latency`, what `balancer train --from-log` makes of it, and what that is worth."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from balancer.config.policy_options import read_policy_file
from dev.experiments.sealed.opening import Task, Watch, Way, execute, unanswered
from dev.experiments.sealed.rivals import read_tuned, rivals, tuned_name
from dev.reference.logs import simulated_log
from policies.base import Policy
from policies.expected_latency import ExpectedLatency
from policies.learned import Learned
from simulator.compare.metrics import RunMetrics
from simulator.compare.statistics import ratio
from simulator.log.fleet import calibrate
from simulator.off_policy.calibrated import twin_of
from simulator.scenario import Scenario
from simulator.train.distribution import scenario
from simulator.train.trainer import write_whole

DEFAULTS, TUNED, NUMBERS, TRAINED, BARE = "defaults", "tuned once", "six numbers", "trained", "trained, no guard"
LABELS = (DEFAULTS, TUNED, NUMBERS, TRAINED, BARE)
RESULT = "result.json"
LOGGED_REQUESTS = 40_000
_LOG_SEED = 1 << 21
"""Of the requests that the log is of: nobody is judged by them."""
_JUDGED_FROM = (1 << 21) + 1000
_NUMBERS_ALONE = ("--iterations", "20", "--set", "coefficients_share=1")


@dataclass(frozen=True, slots=True)
class Fleet:
    seed: int
    number: int
    folder: Path
    judged_by: int
    """Seeds."""

    @property
    def scenario(self) -> Scenario:
        return scenario(self.seed, self.number)

    def result(self) -> dict[str, Any]:
        """What came out; worked out once, some minutes, and read from its file afterwards."""
        file = self.folder / RESULT
        if not file.exists():
            write_whole(file, (json.dumps(self._worked_out(), indent=1) + "\n").encode())
        read: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return read

    def _worked_out(self) -> dict[str, Any]:
        given = self.scenario
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        requests = given.arrivals(_LOG_SEED, LOGGED_REQUESTS)
        log = simulated_log(self.folder / "log", given.fleet, requests, ExpectedLatency(), _LOG_SEED)
        try:
            made = twin_of(log, calibrate(log))
            differs = [why for model in made.models for why in model.differs()]
            models = {model.model: [model.p50_error.value, model.p99_error.value] for model in made.models}
        except ValueError as error:
            differs, models = [str(error)], {}
        numbers, _ = self._trained("numbers", _NUMBERS_ALONE)
        trained, took_s = self._trained("trained", ())
        policies: Mapping[str, tuple[Policy, Way]] = {
            DEFAULTS: (ExpectedLatency(), "plain"),
            TUNED: (rivals(read_tuned())[tuned_name("expected_latency")].policy, "plain"),
            NUMBERS: (numbers, "guarded"),
            TRAINED: (trained, "guarded"),
            BARE: (trained, "plain"),
        }
        ran = {label: self._judged(given, label, *how) for label, how in policies.items()}
        judged, watch = {label: metrics for label, (metrics, _) in ran.items()}, ran[TRAINED][1]
        assert watch is not None  # it runs under its guard
        return {
            "fleet": _told(given),
            "differs": differs,
            "twin": models,
            "gain_in_twin": trained.loaded.record["scoreboard"]["log"]["expected_latency"]["mean"],
            "train_s": round(took_s),
            "ratios": {label: list(_ratios(judged[label], judged[DEFAULTS])) for label in LABELS},
            "unanswered": {label: unanswered(judged[label]) for label in LABELS},
            "by_baseline": float(watch.by_baseline.mean()),
            "guard_saw": dict(watch.reasons),
        }

    def _trained(self, name: str, further: tuple[str, ...]) -> tuple[Learned, float]:
        """As a user would, but for the check, whose result is told beside; and the seconds that it took."""
        out, began_s = self.folder / name, time.monotonic()
        command = ("train", "--out", str(out), "--from-log", str(self.folder / "log"), "--unchecked", "--jobs", "2")
        with open(self.folder / f"{name}.log", "wb") as said:
            subprocess.run([sys.executable, "-m", "balancer", *command, *further], stdout=said, stderr=said, check=True)
        policy = Learned(file=str(out / "policy.npz")).with_files(read_policy_file)
        assert isinstance(policy, Learned)
        return policy, time.monotonic() - began_s

    def _judged(self, given: Scenario, label: str, policy: Policy, way: Way) -> tuple[RunMetrics, Watch | None]:
        seeds = tuple(range(_JUDGED_FROM, _JUDGED_FROM + self.judged_by))
        return execute(Task(self.number, label, given, policy, way, seeds, given.requests))


def _told(given: Scenario) -> dict[str, Any]:
    fleet = given.fleet
    return {
        "name": given.name,
        "models": len(fleet.models),
        "workers": len(fleet.workers),
        "balancers": fleet.balancers,
        "keys": not fleet.settings.sticky_keys,
        "faults": [fault.kind for fault in fleet.faults],
        "cold": fleet.cold.executions > 0,
        "hidden_work": any(traffic.work.cv > 0 for traffic in given.workload.traffic if hasattr(traffic.work, "cv")),
    }


def _ratios(own: RunMetrics, other: RunMetrics) -> Iterator[float]:
    """Of mean and p99, geometric means over the seeds."""
    for figure in ("mean_s", "p99_s"):
        yield ratio(getattr(own.latency, figure), getattr(other.latency, figure)).value
