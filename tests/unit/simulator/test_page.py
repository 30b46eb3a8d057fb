import csv
import html.parser
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from support.results import fake_run, fake_social

from policies import BUILTIN
from simulator.compare import compare as comparing
from simulator.compare import table, text
from simulator.compare.compare import ComparisonPlan, compare
from simulator.compare.document import SCHEMA, ComparisonReport, as_json
from simulator.compare.statistics import Estimate
from simulator.pages import plots
from simulator.pages.scoreboard import page
from simulator.scenario import load_scenario

POLICIES = ("wlpr", "power_of_two", "expected_latency")


class Tags(html.parser.HTMLParser):
    """Fails where an end tag closes another element than the last opened."""

    def __init__(self) -> None:
        super().__init__()
        self.still_open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "wbr"):
            self.still_open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.still_open.pop() == tag


@pytest.fixture(scope="module")
def report() -> ComparisonReport:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparing, "run", fake_run)
        patch.setattr(comparing, "run_social", fake_social)
        scenarios = tuple(map(load_scenario, ("several-models", "big-fleet")))
        plan = ComparisonPlan(
            scenarios,
            {f"{name}": BUILTIN[name]() for name in POLICIES},
            (0, 1, 2),
            requests=200,
            sweep=(0.5, 0.9),
            timelines=True,
        )
        return ComparisonReport(compare(plan), "expected_latency", "balancer simulate --scenario <b>")


@pytest.fixture(scope="module")
def written(report: ComparisonReport) -> str:
    return page(report)


def test_the_page_needs_nothing_else(written: str) -> None:
    assert not re.search(r"""(src|href)=["'](?!data:|#)|@import|url\((?!#)|<script|<metadata""", written)


def test_the_page_is_whole(written: str, report: ComparisonReport) -> None:
    parser = Tags()
    parser.feed(written)
    assert parser.still_open == []
    # Two scenarios of four plots each, and the profiles.
    drawn = re.findall(r"<svg .*?</svg>", written, re.DOTALL)
    assert len(drawn) == 9
    identifiers = [set(re.findall(r'\bid="([^"]+)"', each)) for each in drawn]
    assert len(set.union(*identifiers)) == sum(map(len, identifiers)), "two plots share an identifier"
    assert written.count("<details>") == 2
    assert all(written.count(policy) > 10 for policy in report.policies)
    assert "&lt;b&gt;" in written


def test_ink_takes_the_colour_of_the_page(written: str) -> None:
    drawn = "".join(re.findall(r"<svg .*?</svg>", written, re.DOTALL))
    assert "currentColor" in drawn
    assert "#1c1f23" not in drawn
    assert "#000000" not in drawn


def test_the_json_is_strict_and_has_every_number_by_seed(report: ComparisonReport) -> None:
    found = json.loads(json.dumps(as_json(report), allow_nan=False))
    assert found["schema"] == SCHEMA
    assert found["seeds"] == [0, 1, 2]
    assert found["command"] == report.command
    (scenario, _) = found["scenarios"]
    policy = scenario["policies"]["wlpr"]
    np.testing.assert_allclose(policy["p99_s"]["by_seed"], report.boards[0].policies["wlpr"].latency.p99_s, rtol=1e-5)
    assert policy["p99_s"]["low"] < policy["p99_s"]["value"] < policy["p99_s"]["high"]
    assert set(policy["regret"]["mean_s"]) == {
        "pooled",
        "social",
        "exact_queues",
        "clairvoyant",
        "same_policy_exact_queues",
    }
    assert scenario["policies"]["expected_latency"]["against_baseline"]["mean_s"]["ratio"]["value"] == 1.0
    assert [each["load"] for each in policy["sweep"]] == [0.5, 0.9]
    assert set(policy["models"]) == set(scenario["models"])
    assert len(policy["busy_share"]) == len(scenario["workers"])
    assert set(scenario["references"]) == {"pooled", "social", "exact_queues", "clairvoyant"}
    assert set(found["aggregate"]) == set(POLICIES)


def test_one_scenario_is_not_folded_and_not_aggregated(report: ComparisonReport) -> None:
    found = page(replace(report, boards=report.boards[:1]))
    assert "<details>" not in found
    assert "Over all scenarios" not in found
    assert found.count("<svg ") == 4


def test_tables_for_the_terminal_and_as_markdown(report: ComparisonReport) -> None:
    console = Console(width=160, record=True)
    console.print(table.scenario_table(report.boards[0], "expected_latency"), table.aggregate_table(report))
    console.print(table.regret_table(report.boards[0], "p99_s"))
    shown = console.export_text()
    assert all(policy in shown for policy in POLICIES)
    assert "pooled bound" in shown
    assert all(f"| {policy} |" in table.markdown(report) for policy in POLICIES)
    head, *rows = csv.reader(table.as_csv(report).splitlines())
    assert head[2:5] == ["mean_ratio", "mean_tied", "mean_answers_less"]
    by_scenario = [row[1:] for row in rows if row[0] == "big-fleet"]
    assert [row[0] for row in by_scenario] == [*report.policies, *report.boards[0].references]
    assert ["1", "1", "0"] in [row[1:4] for row in by_scenario]


def test_labels_are_pushed_apart_and_stay_in_order() -> None:
    places = np.array([0.5, 0.1, 0.52, 0.99])
    found = plots.spread(places, 0.1)
    np.testing.assert_array_equal(np.argsort(found), np.argsort(places))
    assert np.diff(np.sort(found)).min() >= 0.1 - 1e-12
    np.testing.assert_allclose(found[[1, 3]], [0.1, 0.99])
    assert plots.spread(np.full(5, 1.0), 0.1).max() <= 1.0


def test_numbers_as_text() -> None:
    assert [text.milliseconds(s) for s in (0.0012345, 0.0999, 0.12345, 12.3456, np.nan)] == [
        "1.23", "99.9", "123", "12,346", "-",
    ]  # fmt: skip
    assert [text.ratio(x) for x in (1.0, 12.34, 1234.5)] == ["1.00", "12.3", "1,234"]
    assert text.interval(Estimate(1.0, 0.5, 2.0)) == "1.00 (0.50 to 2.00)"
    assert text.interval(Estimate(0.001, np.nan, np.nan), "ms") == "1"
