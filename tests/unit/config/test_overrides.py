"""Fields set on the command line: what fits is in force over the file, what does not is named with a remedy."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from balancer.cli import main as cli
from balancer.config import config
from balancer.config.config import Config, ConfigError
from balancer.config.overrides import Overrides


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("listen.admin", "'listen.admin' has no '='; write FIELD=VALUE, such as listen.admin=127.0.0.1:8091"),
        ("=3", "'=3' names no field before '='; write FIELD=VALUE, such as"),
        ("listen..admin=3", "'listen..admin=3' names no field before '='"),
        ("listen.admin=[::1]:80", "'listen.admin=[::1]:80': not YAML: "),
        ("listen.admin=[::1]:80", "or quote what is text, as in listen.admin='\"[::1]:80\"'"),
        ("seed=!!set 3", "'seed=!!set 3': the tag"),
        ("listen.admn=1", "--set listen.admn=1: there is no such field; did you mean listen.admin or"),
        ("decisions_share=0.5", "--set decisions_share=0.5: there is no such field; did you mean log.decisions_share?"),
        ("listen.admin.x=3", "--set listen.admin.x=3: there is no such field; did you mean listen.admin or"),
        ("rollout.nam=wlpr", '--set rollout.nam="wlpr": there is no such field; did you mean rollout.name or'),
        ("zzz=3", "--set zzz=3: there is no such field; known sections: policy, guard,"),
        ("zzz=3", "docs/config.md lists all"),
        ("processes=many", '--set processes="many": "many" is not allowed: must be a valid integer.'),
        ("processes=2024-01-01", '--set processes="2024-01-01": "2024-01-01" is not allowed'),
        (
            "policy.name=wlp",
            '--set policy.name="wlp": "wlp" is not allowed: there is no such policy; did you mean "wlpr"?',
        ),
        ("policy.options.temp=1", "--set policy.options.temp=1: unknown field"),
        ("models.a.version=[1]", "--set models.a.version=[1]: unknown field (its value is [1]); did"),
        ("policy={nam: wlpr}", '--set policy={"nam": "wlpr"}: policy.nam: unknown field'),
        (
            "listen=5",
            "--set listen=5: 5 is not allowed: must be a mapping of fields: envoy, gateways, health,",
        ),
    ],
)
def test_a_setting_that_does_not_fit_is_named_with_its_remedy(
    tmp_path: Path, setting: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("balancer.server.serve._run")  # nothing is to be served
    file = tmp_path / "balancer.yaml"
    file.write_text("{}\n")
    result = CliRunner().invoke(cli.main, ["serve", "--config", str(file), "--set", setting])
    assert result.exit_code != 0
    # Usage errors are wrapped to the width of the terminal.
    assert message in " ".join(result.stderr.split())


def test_sections_that_the_file_does_not_have_can_be_set() -> None:
    overridden = Overrides(
        {"rollout.name": "wlpr", "models.digits.versions": [3], "policy.options.temperature": 0.5, "log.level": "debug"}
    )(config.parse("models: {other: {}}", "file"))
    assert overridden.rollout is not None
    assert overridden.rollout.name == "wlpr"
    assert overridden.models["digits"].versions == ("3",)
    assert set(overridden.models) == {"digits", "other"}
    assert overridden.policy.options["temperature"] == 0.5
    assert overridden.log.level == "debug"


def test_what_the_file_says_otherwise_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    set_over = Overrides({"log.level": "debug"})
    set_over(Config())
    assert not caplog.records
    set_over(config.parse("log: {level: error}", "file"))
    assert "log.level is set on the command line; what the file says of it is not used" in caplog.text


def test_an_error_in_the_file_is_not_blamed_on_the_command_line() -> None:
    with pytest.raises(ConfigError) as caught:
        Overrides({"processes": 3, "seed": 1})(config.parse("listen: {admin: '127.0.0.1:0'}", "file"))
    assert "--set processes=3: 3 is not allowed: must be 1 where a port of listen is 0" in str(caught.value)
    assert "--set seed" not in str(caught.value)
