import io
import json
import math
import re
import struct
from pathlib import Path

from rich.console import Console
from unit.dev.demo.synthetic import FLEET, made_up_report, outcome, outcomes

from dev.demo.__main__ import finish
from dev.demo.page import page
from dev.demo.plot import draw, styles_of
from dev.demo.report import RANKING, as_json, cells, heading, make_report, table
from dev.demo.steps import DigitsOutcome
from dev.demo.traffic import POLICIES, Plan
from simulator.pages.html import line_styles

README = Path(__file__).resolve().parents[4] / "README.md"


def test_rows_come_by_rank_and_within_a_rank_by_name() -> None:
    report = made_up_report([*outcomes(), outcome("a_twin", 22), outcome("wlpr_twin", 33)])
    ranked = [(row.rank, row.policy) for row in report.rows]
    assert ranked == sorted(ranked)
    rank = {policy: of for of, policy in ranked}
    assert rank["a_twin"] == rank["expected_latency"] == 1
    assert rank["wlpr"] == rank["wlpr_twin"]
    assert rank["round_robin"] == len(ranked)
    assert all(row.p99_interval_s[0] <= row.summary.p99_s <= row.p99_interval_s[1] for row in report.rows)
    assert report.failures() == []


def test_the_table_has_a_column_for_each_worker_with_its_device() -> None:
    report = made_up_report(outcomes())
    assert heading(report)[-4:] == ["made-up-0 A100", "made-up-1 V100", "made-up-2 A30", "made-up-3 T4"]
    line = cells(report.rows[-1], report.workers)
    assert len(line) == len(heading(report))
    assert line[:4] == ["8", "round_robin", "3,000", "0"]
    assert sum(int(cell.replace(",", "")) for cell in line[-4:]) == 3000


def shape(text: str) -> list[str]:
    """The lines of a table with each word of a row as `x`, and what stands below."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    rule = next(place for place, line in enumerate(lines) if set(line) == {"─"})
    last = next(place for place, line in enumerate(lines) if line.startswith("Rank: "))
    rows = [" ".join("x" for _ in line.replace(" to ", "-").split()) for line in lines[rule + 1 : last]]
    heads = [" ".join(line.split()) for line in lines[1:rule]]
    return [re.sub(r"[\d,]+", "N", lines[0]), *heads, *rows, " ".join(lines[last:])]


def test_the_readme_shows_a_table_as_the_demo_prints_it() -> None:
    """With numbers of a real run; as many policies as the demo compares, and words as the code has them."""
    shown = README.read_text().partition("<!-- demo table -->")[2].partition("<!-- /demo table -->")[0]
    sample, _, after = shown.partition("```text\n")[2].partition("```")[0].partition("\n\n27 swaps")
    assert "No request failed." in after
    console = Console(width=120, record=True, file=io.StringIO())
    fleet = {"workers": [{**each, "worker": f"worker-{at}"} for at, each in enumerate(FLEET["workers"])]}
    made_up = [outcome(policy, 20, workers=fleet) for policy in POLICIES]
    console.print(table(make_report(DigitsOutcome(540, 530, {}), made_up, Plan(), fleet)))
    assert shape(sample) == shape(console.export_text())
    ranks = [line.split()[:2] for line in sample.splitlines() if re.match(r" *\d+ +\w+ ", line)]
    assert ranks == sorted(ranks, key=lambda each: (int(each[0]), each[1]))
    assert {policy for _, policy in ranks} == set(POLICIES)


def test_a_failed_request_or_a_low_accuracy_is_a_failure_of_the_demo() -> None:
    failed = made_up_report([outcome("wlpr", 30, failed=2)])
    assert failed.failures() == ["requests failed under wlpr: {'UNAVAILABLE': 2}"]
    (failure,) = made_up_report([outcome("wlpr", 30)], DigitsOutcome(540, 513, {})).failures()
    assert "95.0% of the digits were right" in failure
    assert made_up_report([outcome("wlpr", 30)], DigitsOutcome(540, 530, {"INTERNAL": 1})).failures()


def test_the_json_is_strict_and_says_the_setting() -> None:
    numbers = json.loads(json.dumps(as_json(made_up_report(outcomes())), allow_nan=False))
    assert numbers["succeeded"] is True
    assert {"Machine", "Fleet", "Seed", "Again", "Design"} <= numbers["setting"].keys()
    assert len(numbers["policies"]) == 8
    assert set(numbers["policies"][0]["models"]) == {"emulated_tft", "emulated_bert_distilled", "emulated_bert_large"}


def test_every_policy_has_a_line_of_its_own() -> None:
    names = [f"policy {i}" for i in range(12)]
    assert len(set(line_styles(names, "abcdefgh", ("solid", "dashed", "dashdot", "dotted")).values())) == 12


def test_each_policy_of_the_demo_has_a_colour_of_its_own_and_none_shares_a_whole_style() -> None:
    assert len({style.colour for style in styles_of(POLICIES).values()}) == len(POLICIES)
    many = styles_of([f"policy {i}" for i in range(40)])
    assert len(set(many.values())) == 40


def test_finish_writes_a_picture_and_a_page_that_needs_nothing_else(tmp_path: Path) -> None:
    found = outcomes()
    console = Console(width=200, record=True)
    assert finish(console, made_up_report(found), found, tmp_path, 1.0) is True
    png = (tmp_path / "policies.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    assert width >= 1200
    assert height >= 800
    text = (tmp_path / "index.html").read_text()
    assert 'src="data:image/png;base64,' in text
    assert not re.search(r"""(src|href)=["'](?!data:)|@import|url\(|<script""", text)
    assert all(row.policy in text for row in made_up_report(found).rows)
    printed = " ".join(console.export_text().split())
    assert "expected_latency" in printed
    assert RANKING in printed
    assert RANKING in text
    assert json.loads((tmp_path / "results.json").read_text())["succeeded"]


def test_failures_are_on_the_page_and_in_the_exit(tmp_path: Path) -> None:
    found = [outcome("wlpr", 30, failed=2), outcome("random", 50)]
    report = made_up_report(found)
    assert finish(Console(), report, found, tmp_path, 1.0) is False
    assert "requests failed under wlpr" in (tmp_path / "index.html").read_text()


def test_names_are_escaped_on_the_page(tmp_path: Path) -> None:
    found = [outcome("<b>", 30)]
    report = made_up_report(found)
    draw(report, found, tmp_path / "p.png")
    text = page(report, tmp_path / "p.png")
    assert "<b>" not in text
    assert "&lt;b&gt;" in text


def test_a_policy_whose_requests_all_failed_is_still_shown(tmp_path: Path) -> None:
    found = [outcome("wlpr", 30, failed=3000), outcome("random", 50)]
    report = made_up_report(found)
    (row,) = [row for row in report.rows if row.policy == "wlpr"]
    assert math.isnan(row.summary.p99_s)
    assert "-" in cells(row, report.workers)
    assert finish(Console(), report, found, tmp_path, 1.0) is False
    assert FLEET["workers"]
