"""What is simulated: the chart's scaling of a fleet like that of scenario `autoscale`, under slow loads."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from balancer.server.metrics import LATENCY_BUCKETS_S
from dev.experiments.autoscaling.closed_loop import Setup, Targets
from dev.experiments.autoscaling.hpa import Rules, direction
from policies.expected_latency import ExpectedLatency
from simulator.capacity import capacity_per_s
from simulator.scenario import load_scenario
from simulator.spec import Autoscale, FleetSpec
from simulator.workload.times import Diurnal, FlashCrowd, Poisson, Process

_CHART = Path(__file__).resolve().parents[3] / "deploy" / "chart"


class Chart(NamedTuple):
    targets: Targets
    behavior: dict[str, Any]
    scrape_s: float
    window_s: float
    """Of the rate that p99 is computed from."""

    def rules(self, least: int, most: int) -> Rules:
        default = Rules(least, most)
        up, down = (
            direction(self.behavior.get(name, {}), of)
            for name, of in (("scaleUp", default.up), ("scaleDown", default.down))
        )
        return Rules(least, most, up, down)


def read_chart(folder: Path = _CHART) -> Chart:
    values = yaml.safe_load((folder / "values.yaml").read_text(encoding="utf-8"))
    scaling = values["autoscaling"]
    (minutes,) = re.findall(
        r"_duration_seconds_bucket\{.*\}\[(\d+)m\]", (folder / "templates/_helpers.tpl").read_text()
    )
    return Chart(
        Targets(float(scaling["backlogSeconds"]), float(scaling["p99Seconds"])),
        scaling["behavior"],
        float(values["monitoring"]["intervalSeconds"]),
        60.0 * int(minutes),
    )


SCENARIO = "autoscale"
SPEED = 0.25
"""Of a worker: a request alone takes 100 ms, a full batch of eight 320 ms, so that hours are not too many requests."""
LEAST, MOST, FIRST = 2, 12, 6
"""Workers: at least, at most, and at the start."""
MEAN = 3.5
"""The mean load, in workers that are busy all the time."""
LOAD_S = 60.0
"""From a pod's creation until its models are loaded."""
REPORT_S = 0.5
"""Rarer than real agents', of which such slow workers need no more."""
MOST_WORKERS = 96


@dataclass(frozen=True, slots=True)
class Load:
    process: Process
    hours: float
    says: str


LOADS: Mapping[str, Load] = {
    "steady": Load(Poisson(), 0.75, "Poisson at the mean"),
    "diurnal": Load(Diurnal(3600.0, 0.6), 1.5, "a sine of an hour, from 0.4 to 1.6 of the mean"),
    "flash crowd": Load(
        FlashCrowd(3.0, 300.0, 1800.0, 600.0), 1.0, "every half an hour a jump to three times, which decays in minutes"
    ),
}


def setup_of(load: Load, chart: Chart) -> Setup:
    fleet, one_per_s = _fleet()
    scenario = load_scenario(SCENARIO)
    deadline = tuple(replace(each, deadline_s=chart.targets.p99_s) for each in scenario.workload.traffic)
    workload = replace(scenario.workload, rate_per_s=MEAN * one_per_s, process=load.process, traffic=deadline)
    arrivals = workload.arrivals(fleet, round(workload.rate_per_s * load.hours * 3600), 0)
    return Setup(
        fleet, arrivals, ExpectedLatency, LOAD_S, chart.scrape_s, chart.window_s, LATENCY_BUCKETS_S, MOST_WORKERS
    )


def one_worker_per_s() -> float:
    """What a worker can serve at most, in requests a second."""
    return _fleet()[1]


def _fleet() -> tuple[FleetSpec, float]:
    scenario = load_scenario(SCENARIO)
    worker = replace(scenario.fleet.workers[0], speed=SPEED)
    first = tuple(replace(worker, name=f"first-{number}") for number in range(FIRST))
    reports = replace(scenario.fleet.reports, period_s=REPORT_S)
    fleet = replace(scenario.fleet, workers=first, autoscale=Autoscale(), reports=reports)
    return fleet, capacity_per_s(replace(fleet, workers=first[:1]), scenario.workload)
