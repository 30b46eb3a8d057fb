"""The lock: one set of versions, with hashes and without an index, and images that have nothing of training."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
LOCK = ROOT / "deploy" / "lock"
FILES = sorted(path.name for path in LOCK.glob("*.txt"))
_ENTRY = re.compile(r"^([\w.-]+)==(\S+)(?: ; [^\\]*)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)
NOT_LOCKED = {"torch"}


def locked(name: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Version and hashes by package."""
    text = (LOCK / name).read_text()
    rest = _ENTRY.sub("", text)
    assert all(line.startswith("#") or not line.strip() for line in rest.splitlines()), rest
    return {
        canonicalize_name(package): (version, frozenset(re.findall(r"sha256:([0-9a-f]+)", hashes)))
        for package, version, hashes in _ENTRY.findall(text)
    }


@pytest.mark.parametrize("name", FILES)
def test_all_is_by_hash_and_of_no_index(name: str) -> None:
    assert locked(name)
    assert "://" not in (LOCK / name).read_text()


@pytest.mark.parametrize("name", ["serving.txt", "agent.txt", "ingress.txt", "build.txt"])
def test_images_have_what_is_tested(name: str) -> None:
    assert locked(name).items() <= locked("development.txt").items()


@pytest.mark.parametrize("name", ["serving.txt", "agent.txt", "ingress.txt"])
def test_images_have_nothing_of_training(name: str) -> None:
    assert not locked(name).keys() & {"torch", "numba", "llvmlite", "scipy", "gymnasium", "ray", "matplotlib"}


def wanted(extra: str) -> list[Requirement]:
    """What pyproject.toml asks for, extras of its own included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = [Requirement(each) for each in project["dependencies"] + project["optional-dependencies"][extra]]
    own = [each for each in found if each.name == "balancer"]
    return [each for each in found if each.name != "balancer"] + [
        below for each in own for name in sorted(each.extras) for below in wanted(name)
    ]


@pytest.mark.parametrize(
    ("name", "extra"), [("development", "dev"), ("serving", "kubernetes"), ("agent", "agent"), ("ingress", "ingress")]
)
def test_the_lock_is_what_pyproject_asks_for(name: str, extra: str) -> None:
    held = locked(f"{name}.txt")
    for requirement in wanted(extra):
        package = canonicalize_name(requirement.name)
        assert package in held or package in NOT_LOCKED, f"{requirement}: run make lock"
        if package in held:
            assert requirement.specifier.contains(held[package][0]), f"{requirement}: run make lock"


def test_the_images_copy_what_is_there() -> None:
    text = (ROOT / "deploy" / "images" / "Dockerfile").read_text()
    sources = [word for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE) for word in line.split()[:-1]]
    assert sources
    assert all((ROOT / source).exists() for source in sources)
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE))
    assert {"serving", "agent"} <= stages
    assert set(re.findall(r"--from=(\S+)", text)) <= stages
