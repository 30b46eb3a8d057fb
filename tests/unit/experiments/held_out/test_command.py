import csv
import json
import re
from dataclasses import dataclass

import numpy as np
import pytest
from click.testing import CliRunner

from experiments.by_hand import BEGIN, END, NOTHING_YET
from experiments.held_out import plan
from experiments.held_out.__main__ import main
from policies.learned.artifact import make_artifact, write_artifact
from policies.learned.features import FEATURES
from policies.learned.network import untrained

TINY = ("--scenario", "heterogeneous-bursty", "--seeds", "2", "--requests", "120", "--jobs", "1", "--no-fleets")
RUNS = 15
"""Ten heuristics, two of them once more otherwise, the clairvoyant, and the file twice."""


@dataclass
class Place:
    folder: object

    def file(self, name, beta=20.0):
        widest = np.full(len(FEATURES), 10.0)
        path = self.folder / f"{name}.npz"
        path.write_bytes(write_artifact(make_artifact(untrained(beta=beta), -widest, widest, {})))
        return path

    def judged(self, *arguments):
        kept, out = self.folder / "kept", self.folder / "out"
        return CliRunner().invoke(main, [*TINY, "--kept", str(kept), "--out", str(out), *map(str, arguments)])

    def page(self):
        return (self.folder / "out" / "held_out.md").read_text()


@pytest.fixture(name="place")
def _place(tmp_path):
    return Place(tmp_path)


def test_a_file_is_judged_once_and_another_costs_only_its_own_runs(place):
    done = place.judged("--file", place.file("one"))
    assert done.exit_code == 0, done.output
    assert f"{RUNS} runs to be done, 0 are kept" in done.output
    assert "s left" in done.output
    again = place.judged("--file", place.file("copy"))
    assert f"0 runs to be done, {RUNS} are kept" in again.output
    both = place.judged("--file", place.file("one"), "--file", place.file("two", beta=5.0))
    assert f"2 runs to be done, {RUNS} are kept" in both.output
    assert "learned two" in place.page()


def test_heuristics_are_run_beforehand(place):
    first = place.judged("--heuristics-only")
    assert f"{RUNS - 2} runs to be done" in first.output
    assert not (place.folder / "out").exists()
    assert "2 runs to be done" in place.judged("--file", place.file("one")).output


def test_page_numbers_and_pictures(place):
    place.judged("--file", place.file("one"))
    text = place.page()
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        # Every table is whole: as many cells in each of its lines as in its head.
        assert len({line.count("|") for line in table.splitlines()}) == 1
    assert not re.search(r"\bnan\b|\binf\b", text)
    assert "not so: heterogeneous-bursty" in text
    assert (place.folder / "out" / "held_out.png").read_bytes().startswith(b"\x89PNG")
    numbers = json.loads((place.folder / "out" / "held_out.json").read_text())
    (scenario,) = numbers["scenarios"]
    assert set(scenario["gap_closed"]) == {"learned", "learned, no guard"}
    assert len(scenario["policies"]["learned"]["mean_s"]) == 2
    assert scenario["ratios"]["expected_latency"]["expected_latency"]["mean_s"]["value"] == pytest.approx(1.0)
    assert len(numbers["bar"]["learned"]) == 6
    rows = {row["policy"]: row for row in csv.DictReader((place.folder / "out" / "held_out.csv").open())}
    assert set(rows) == set(scenario["policies"])
    mean_s = np.mean(scenario["policies"]["learned"]["mean_s"])
    assert float(rows["learned"]["mean_s"]) == pytest.approx(mean_s, rel=1e-4)
    assert rows["expected_latency"]["mean_ratio"] == "1"
    assert rows["clairvoyant"]["mean_ratio"] == ""


def test_words_of_a_person_stay(place):
    file = place.file("one")
    place.judged("--file", file)
    path = place.folder / "out" / "held_out.md"
    words = "Use it.\n\nIt loses | where workers are alike."
    path.write_text(path.read_text().replace(NOTHING_YET, words))
    place.judged("--file", file)
    assert f"{BEGIN}\n{words}\n{END}" in place.page()


def test_what_is_finished_survives_a_stop(place, monkeypatch):
    file, real, left = place.file("one"), plan.execute, [5]

    def stopped(task):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return real(task)

    monkeypatch.setattr(plan, "execute", stopped)
    done = place.judged("--file", file)
    assert done.exit_code == 130
    assert "goes on from there" in done.output
    partial = place.judged("--file", file, "--again")
    assert partial.exit_code == 0, partial.output
    assert "Not finished, and left out: heterogeneous-bursty" in place.page()
    monkeypatch.setattr(plan, "execute", real)
    assert f"{RUNS - 5} runs to be done, 5 are kept" in place.judged("--file", file).output
    assert "Not finished" not in place.page()


@pytest.mark.parametrize(
    ("content", "said"), [(None, "cannot be read"), (b"nothing of ours", "is not a policy that `balancer train` wrote")]
)
def test_a_file_that_cannot_be_used_is_refused_before_anything_runs(place, content, said):
    path = place.folder / "bad.npz"
    if content is not None:
        path.write_bytes(content)
    done = place.judged("--file", path)
    assert done.exit_code == 1
    assert said in done.output
    assert str(path) in done.output
    assert not (place.folder / "kept").exists()


def test_two_files_of_one_name_are_refused(place):
    (place.folder / "other").mkdir()
    done = place.judged("--file", place.file("one"), "--file", place.file("other/one"))
    assert done.exit_code == 1
    assert "two files are called learned one" in done.output


def test_other_fleets_are_judged_too(place, monkeypatch):
    two = [each for each in plan.other_fleets() if each.name == "2-speeds at 85%"]
    monkeypatch.setattr("experiments.held_out.__main__.other_fleets", lambda: tuple(two))
    done = place.judged("--file", place.file("one"), "--fleets")
    assert done.exit_code == 0, done.output
    assert "| 2-speeds at 85% |" in place.page()
    assert (place.folder / "out" / "held_out_fleets.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((place.folder / "out" / "held_out.json").read_text())["fleets"][0]["workers"] == 2
