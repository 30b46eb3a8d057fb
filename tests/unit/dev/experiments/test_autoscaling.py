"""The chart's autoscaler: what Kubernetes documents of it, and that replicas follow the load of a simulated fleet."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dev.experiments.autoscaling.__main__ import variants
from dev.experiments.autoscaling.closed_loop import Run, closed_loop
from dev.experiments.autoscaling.hpa import SYNC_S, Autoscaler, Direction, Pace, Rules, direction
from dev.experiments.autoscaling.plan import LOADS, Load, one_worker_per_s, read_chart, setup_of
from dev.experiments.autoscaling.report import Figures, figures, offered_per_s
from simulator.workload.times import Diurnal, Poisson

PAGE = Path(__file__).resolve().parents[4] / "docs" / "operate" / "autoscaling.md"
AT_ONCE = Direction(0.0, (Pace("Percent", 1000, 15),))
FREE = Rules(1, 100, AT_ONCE, Direction(0.0, (Pace("Percent", 100, 15),)))


@pytest.mark.parametrize(
    ("replicas", "ready", "ratios", "wanted"),
    [
        (4, 4, [2.0], 8),
        (4, 4, [1.09], 4),
        (4, 4, [1.11], 5),
        (4, 4, [0.91], 4),
        (4, 4, [0.5], 2),
        (4, 4, [0.0], 1),
        (4, 4, [0.5, 2.0], 8),
        (4, 2, [2.0], 4),
        (4, 4, [None, 2.0], 8),
        (4, 4, [None, 0.5], 4),
        (4, 4, [None, None], 4),
        (60, 60, [9.0], 100),
    ],
)
def test_as_many_as_the_ratio_says(replicas: int, ready: int, ratios: list[float | None], wanted: int) -> None:
    assert Autoscaler(FREE).look(15.0, replicas, ready, ratios) == wanted


def test_fewer_only_once_they_have_sufficed_for_the_window() -> None:
    scaler = Autoscaler(replace(FREE, down=Direction(60.0, FREE.down.paces)))
    found = [scaler.look(at * SYNC_S, 8, 8, [1.0 if at == 1 else 0.5]) for at in range(8)]
    # Eight are wanted at 0 s, as they exist, and at 15 s by the metric, so none goes until 75 s.
    assert found == [8, 8, 8, 8, 8, 4, 4, 4]


def test_more_by_the_pace_that_allows_most() -> None:
    scaler, counts = Autoscaler(replace(FREE, up=Rules(1, 100).up)), [1]
    for look in range(1, 6):
        counts.append(scaler.look(look * SYNC_S, counts[-1], counts[-1], [100.0]))
    assert counts == [1, 5, 10, 20, 40, 80]


def test_fewer_by_the_pace() -> None:
    scaler, counts = Autoscaler(replace(FREE, down=Direction(0.0, (Pace("Pods", 2, 60),)))), [9]
    for look in range(1, 9):
        counts.append(scaler.look(look * SYNC_S, counts[-1], counts[-1], [0.1]))
    assert counts == [9, 7, 7, 7, 7, 5, 5, 5, 5]


def test_what_it_does_not_follow_is_refused() -> None:
    with pytest.raises(ValueError, match="selectPolicy"):
        direction({"selectPolicy": "Min"}, FREE.up)


def run_of(load: Load, least: int, most: int) -> Run:
    chart = read_chart()
    return closed_loop(setup_of(load, chart), Autoscaler(chart.rules(least, most)), chart.targets)


def test_the_metric_rises_and_falls_with_the_offered_load() -> None:
    run = run_of(Load(Diurnal(1200.0, 0.6), 1 / 3, "a sine"), 6, 6)
    assert set(run.replicas) == {6}
    known = ~np.isnan(run.scraped.backlog_s)
    offered, wait_s = offered_per_s(run)[known], run.scraped.backlog_s[known]
    by_load = [wait_s[some].mean() for some in np.array_split(np.argsort(offered), 4)]
    assert by_load == sorted(by_load)
    assert by_load[-1] > 2 * by_load[0]


def test_the_replicas_settle_where_they_suffice() -> None:
    run = run_of(Load(Poisson(), 0.5, "steady"), 2, 12)
    settled = run.replicas[len(run.replicas) // 2 :]
    # By one or two when traffic happens to be denser; a scaler without a pace swings over most of its range.
    assert settled.max() - settled.min() <= 2
    found = figures(run, one_worker_per_s(), 2)
    assert found.too_few < 0.1
    assert found.late == 0
    assert found.mean_replicas < found.mean_needed + 2


def test_the_csv_beside_the_page_has_a_line_for_each_load_and_target() -> None:
    head, *lines = csv.reader(PAGE.with_suffix(".csv").read_text(encoding="utf-8").splitlines())
    assert head == ["load", "variant", *Figures._fields]
    wanted = [(load, variant) for load in LOADS for variant in variants(read_chart())]
    assert [(load, variant) for load, variant, *_ in lines] == wanted, "run: python -m dev.experiments.autoscaling"
