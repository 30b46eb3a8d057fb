"""The commands of docs/operate/kubernetes.md, at a real API server."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.chart import ROOT, helm
from support.kubernetes_api import KubernetesApi

pytestmark = pytest.mark.integration

PAGE = ROOT / "docs" / "operate" / "kubernetes.md"
ELSEWHERE = {"docker", "kubectl", "curl"}
"""Commands that need a Docker daemon, or pods that run: the page says so."""


def lines_of_commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert all(line.startswith("$ ") for line in lines)
    return lines


def commands() -> list[list[str]]:
    return [shlex.split(line.removeprefix("$ ").removesuffix(" &")) for line in lines_of_commands()]


def without_target(words: list[str]) -> list[str]:
    """A command without the file that its output goes to."""
    return words[: words.index(">")] if ">" in words else words


async def test_what_is_asked_of_helm_works_in_this_order(
    kubernetes: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    environment = {"KUBECONFIG": str(kubernetes.directory / "kubeconfig")}
    calls = [words for words in commands() if words[0] == "helm"]
    assert [words[1] for words in calls] == ["install", "upgrade", "template", "lint", "template", "uninstall"]
    for words in calls:
        done = helm(*without_target(words)[1:], environment=environment)
        assert done.returncode == 0, (words, done.stderr)
        if words[1] == "upgrade":
            path = "/api/v1/namespaces/inference/configmaps/fleet-balancer-config"
            held = (await kubernetes.do("GET", path))["data"]["balancer.yaml"]
            assert yaml.safe_load(held)["policy"] == {"name": "wlpr"}


def test_a_config_can_be_checked_before_it_is_installed(tmp_path: Path) -> None:
    (template,) = (words for words in commands() if words[0] == "helm" and ">" in words)
    (tmp_path / "out").mkdir()
    done = helm(*(str(ROOT / word) if word.startswith("deploy/") else word for word in without_target(template)[1:]))
    (tmp_path / template[-1]).write_text(done.stdout)
    (line,) = (line.removeprefix("$ ") for line in lines_of_commands() if line.startswith("$ python3"))
    beside = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=tmp_path,
        env={**os.environ, "PATH": beside},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["policy"]["name"] == "wlpr"


def test_the_others_are_tried_elsewhere_or_not_at_all(tmp_path: Path) -> None:
    rest = [words for words in commands() if words[0] not in {"helm", *ELSEWHERE}]
    assert [words[0] for words in rest] == ["python3", "make"]
    make = rest[-1]
    # What the target runs, without set-up before it, and into a folder of the test's.
    done = subprocess.run([*make, "--dry-run", "--silent"], cwd=ROOT, capture_output=True, text=True, check=False)
    (line,) = (each for each in done.stdout.splitlines() if " template " in each)
    words = shlex.split(line.partition(" > ")[0])
    done = helm(*(str(ROOT / word) if word.startswith("deploy/") else word for word in words[1:]))
    kinds = {each["kind"] for each in yaml.safe_load_all(done.stdout) if each}
    assert {"Deployment", "StatefulSet", "Role"} <= kinds
    assert line.endswith("out/manifests.yaml")
