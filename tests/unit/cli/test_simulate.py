"""The simulator's commands as a shell sees them; the engine is replaced, for it has tests of its own."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.results import fake_run, fake_social
from support.weights import write_weights

from balancer.cli import main as cli
from policies import BUILTIN
from simulator.commands import inputs, scoreboard
from simulator.compare import compare as comparing
from simulator.scenario import long_scenario_names, scenario_names

SMALL = ("--requests", "100", "--seeds", "2")
CALM = ("--scenario", "homogeneous-steady")


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "run", fake_run)
    monkeypatch.setattr(comparing, "run_social", fake_social)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, arguments)


def test_simulate_shows_the_scoreboard_and_writes_what_is_asked_for(tmp_path: Path) -> None:
    numbers, picture = tmp_path / "board.json", tmp_path / "board.html"
    arguments = (*CALM, "--policy", "wlpr", "--policy", "power_of_two:choices=3", *SMALL)
    result = run("simulate", *arguments, "--json", str(numbers), "--html", str(picture))
    assert result.exit_code == 0, result.output
    assert "power_of_two:choices=3" in result.stdout
    assert "pooled bound" in result.stdout
    assert "mean vs wlpr" in result.stdout
    found = json.loads(numbers.read_text())
    assert list(found["scenarios"][0]["policies"]) == ["wlpr", "power_of_two:choices=3"]
    assert found["seeds"] == [0, 1]
    assert found["command"].startswith("balancer simulate --scenario homogeneous-steady --policy wlpr --policy")
    assert "<svg " in picture.read_text()


def test_simulate_takes_all_policies_several_scenarios_and_files(tmp_path: Path) -> None:
    (shipped,) = Path(comparing.__file__).parents[1].glob("scenarios/*/stale-reports.yaml")
    mine = tmp_path / "mine.yaml"
    mine.write_text(shipped.read_text())
    result = run("simulate", *CALM, "--scenario", str(mine), "--load", "0.5", "--no-ladder", *SMALL)
    assert result.exit_code == 0, result.output
    assert "50.0% of capacity" in result.stdout
    assert "mine" in result.stdout
    assert "Over all scenarios" in result.stdout
    assert "Regret" not in result.stdout
    assert {name for name in BUILTIN if f" {name} " not in result.stdout} == {"learned"}  # it needs a file


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--policy", "wlp"), "'wlp': there is no such policy; did you mean \"wlpr\"?"),
        (("--policy", "power_of_two:choises=3"), 'choises: unknown field (its value is 3); did you mean "choices"?'),
        (("--policy", "power_of_two:choices=0"), "power_of_two:choices=0: choices: 0 is not allowed"),
        (
            ("--policy", "learned"),
            "file: is missing and has no default; add it. The weights: a file that `balancer train",
        ),
        (("--policy", "wlpr:x"), "'x' must be option=value, such as choices=3"),
        (("--scenario", "homogenous-steady"), 'did you mean "homogeneous-steady"?'),
        (("--scenario", "homogeneous-steady"), "homogeneous-steady is given twice: drop one"),
        (("--policy", "wlpr", "--baseline", "random"), "'random' is not compared here: add --policy random"),
        (("--load", "0"), "0.0 is not in the range x>0"),
        (("--load", "inf"), "load is inf"),
    ],
)
def test_bad_input_is_named_with_the_remedy(arguments: tuple[str, ...], words: str) -> None:
    result = run("simulate", *CALM, *arguments, *SMALL)
    assert result.exit_code != 0
    assert words in result.output.replace("\n", " ")
    assert "Traceback" not in result.output


def test_simulate_takes_the_file_of_a_learned_policy(tmp_path: Path) -> None:
    mine = tmp_path / "mine.npz"
    write_weights(mine)
    result = run("simulate", *CALM, "--policy", f"learned:file={mine}", "--no-ladder", *SMALL)
    assert result.exit_code == 0, result.output
    assert "learned:file=" in result.stdout
    mine.unlink()
    refused = run("simulate", *CALM, "--policy", f"learned:file={mine}", *SMALL)
    assert refused.exit_code == 2
    words = "".join(refused.output.split())  # click wraps it
    assert "--policy" in words
    assert f"file{mine}cannotberead:Nosuchfileordirectory;putthefilethereornameanother" in words


def test_scenarios_as_table_and_as_json() -> None:
    shown = run("scenarios", "--split", "held-out")
    assert shown.exit_code == 0, shown.output
    assert " big-fleet " in f" {shown.stdout} "
    assert "homogeneous-steady" not in shown.stdout
    listed = {each["name"]: each for each in json.loads(run("scenarios", "--json").stdout)}
    assert sorted(listed) == scenario_names()
    long = json.loads(run("scenarios", "--minutes", "--json").stdout)
    assert [each["name"] for each in long] == long_scenario_names()
    assert listed["big-fleet"]["workers"] == 256
    assert listed["overload"]["load"] == pytest.approx(1.1)


def test_scoreboard_writes_page_numbers_and_markdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoreboard, "scenario_names", lambda: ["homogeneous-steady", "big-fleet"])
    monkeypatch.setattr(scoreboard, "long_scenario_names", lambda: ["conversations"])
    monkeypatch.setattr(scoreboard, "_QUICK_REQUESTS", 60)
    monkeypatch.setattr(inputs, "all_policies", lambda: {name: BUILTIN[name]() for name in ("wlpr", "prequal")})
    result = run("scoreboard", "--quick", "--out", str(tmp_path / "new"))
    assert result.exit_code == 0, result.output
    assert "<details>" in (tmp_path / "new" / "index.html").read_text()
    assert len(json.loads((tmp_path / "new" / "scoreboard.json").read_text())["scenarios"]) == 2
    assert "| wlpr |" in (tmp_path / "new" / "README.md").read_text()
    assert "big-fleet,wlpr," in (tmp_path / "new" / "scoreboard.csv").read_text()
    long = run("scoreboard", "--quick", "--minutes", "--out", str(tmp_path / "long"))
    assert long.exit_code == 0, long.output
    (found,) = json.loads((tmp_path / "long" / "scoreboard.json").read_text())["scenarios"]
    assert found["policies"]["wlpr"]["first_response"]["mean_s"]["value"] > 0
