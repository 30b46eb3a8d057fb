"""What `envoy.frontend: auto` is, for whom, and why."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.plugins import installed

from balancer.cli import main as cli
from balancer.config import frontend
from balancer.config.config import ConfigError, from_mapping
from balancer.native.state import default_folder


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where kernel and module are."""
    monkeypatch.setattr(frontend, "_missing", lambda: "")


@pytest.mark.parametrize(
    ("sections", "decides", "why"),
    [
        ({}, "native", "one process, Envoy on its machine"),
        ({"listen": {"envoy": "unix:/run/envoy.sock"}}, "native", "one process"),
        ({"envoy": {"balancers": ["unix:/run/envoy.sock.0"]}}, "native", "one process"),
        ({"processes": 2}, "pick", "processes is 2"),
        ({"holding": {"models": {"m": {}}}}, "pick", "holding.models is m"),
        ({"requests": {"tenant_of_user": True}}, "pick", "requests.tenant_of_user is true"),
        ({"envoy": {"balancers": ["10.0.0.5:9003"]}}, "pick", "Envoy is on another machine"),
        ({"listen": {"gateways": "0.0.0.0:9010"}}, "pick", "listen.gateways is set"),
        ({"envoy": {"frontend": "pick"}}, "pick", "as envoy.frontend says"),
        ({"envoy": {"frontend": "proxy"}}, "proxy", "as envoy.frontend says"),
    ],
    ids=str,
)
def test_native_where_it_can_run_else_pick(sections: dict[str, Any], decides: str, why: str) -> None:
    config = from_mapping(sections)
    assert config.frontend == decides
    assert why in frontend.frontend_of(config)[1]
    assert (config.shared_folder == default_folder(config.listen.envoy)) == (decides == "native")


def test_pick_where_nothing_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend, "_missing", lambda: "there is no module.so")
    assert frontend.frontend_of(from_mapping({})) == ("pick", "there is no module.so")


def test_check_prints_what_auto_is_and_why(tmp_path: Path) -> None:
    def problems(text: str) -> list[str]:
        result = CliRunner().invoke(cli.main, ["check", "-"], input=text)
        assert result.exit_code == 0, result.output
        return [line for line in result.stdout.splitlines() if line.startswith("# ")][1:]

    assert problems("{}") == [
        "# envoy.frontend: auto is native here: one process, Envoy on its machine, kernel and module there",
        "# listen.fleet: auto is 127.0.0.1:9202",
    ]
    assert problems("{processes: 2, listen: {fleet: null}}") == [
        "# envoy.frontend: auto is pick here: processes is 2, and Envoy decides by the state of one"
    ]
    assert problems("{envoy: {frontend: pick, balancers: ['10.0.0.5:9003']}}") == [
        "# listen.fleet: auto is nowhere: Envoy is on another machine, or listen.gateways is set"
    ]


def test_holding_that_would_need_another_front_end_waits_for_a_restart_in_words() -> None:
    holding = {"holding": {"models": {"m": {}}}}
    with pytest.raises(ConfigError, match=r"f: holding\.models: needs a restart: .* set envoy\.frontend: pick"):
        frontend.check_live(from_mapping({}), from_mapping(holding), "f")
    running = from_mapping({"envoy": {"frontend": "pick"}})
    frontend.check_live(running, from_mapping(holding), "f")
    frontend.check_live(from_mapping(holding), from_mapping(holding), "f")


@pytest.fixture
def stranger() -> Iterator[None]:
    """`moody_file` is installed, which reads a file, so that nothing can trace it."""
    with installed("moody_plugin"):
        yield


@pytest.mark.usefixtures("stranger")
@pytest.mark.parametrize("field", ["policy", "rollout", "shadow"])
def test_a_policy_that_cannot_be_traced_is_asked_for(tmp_path: Path, field: str) -> None:
    """Chosen so by default, refused where Envoy is to decide by itself: at the start, and by a change while it runs."""
    (tmp_path / "mood").write_text("good")
    sections = {field: {"name": "moody_file", "options": {"mood": str(tmp_path / "mood")}}}
    if field == "shadow":
        sections[field]["share"] = 0.1
    refusal = rf'{field}\.name: "moody_file" .*: native\), and it calls .*; make it traceable .* envoy\.frontend: p'
    config = from_mapping(sections)
    assert config.frontend == "pick"
    why = f'{field}.name is "moody_file", which Envoy cannot decide by, since it calls '
    assert frontend.frontend_of(config)[1].startswith(why)
    with pytest.raises(ConfigError, match=refusal):
        from_mapping({**sections, "envoy": {"frontend": "native"}})
    with pytest.raises(ConfigError, match=refusal):
        frontend.check_live(from_mapping({}), config, "f")
    for asking in ("pick", "proxy"):
        running = from_mapping({**sections, "envoy": {"frontend": asking}})
        frontend.check_live(running, running, "f")
    frontend.check_live(config, config, "f")
