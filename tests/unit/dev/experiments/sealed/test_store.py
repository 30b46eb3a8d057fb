from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from unit.dev.experiments.sealed.synthetic import make_scenario

from dev.experiments.sealed import sources
from dev.experiments.sealed.runs import Task, execute
from dev.experiments.sealed.store import Store
from policies.base import from_file
from policies.power_of_two import PowerOfTwo

TASK = Task(make_scenario(), PowerOfTwo(), "power_of_two", "plain", (0, 1), 40)


@dataclass(frozen=True)
class Trained(PowerOfTwo):
    name: ClassVar[str] = "power_of_two"
    weights: str = from_file("What is in its file")

    @property
    def digest(self):
        return self.weights or ""


@pytest.fixture(name="store")
def _store(tmp_path):
    store = Store(tmp_path)
    assert store.find(TASK) is None
    store.keep(TASK, execute(TASK))
    assert store.find(TASK) is not None
    return store


@pytest.mark.parametrize(
    "changed",
    [
        {"policy": PowerOfTwo(choices=3)},
        {"policy": Trained(weights="other")},
        {"seeds": (1, 2)},
        {"seeds": (0, 1, 2)},
        {"requests": 41},
        {"way": "guarded"},
        {"warm_up_share": 0.5},
        {"scenario": make_scenario(speeds=(1.0, 4.0))},
        {"scenario": make_scenario().with_load(0.9)},
        {"scenario": make_scenario(keys=True)},
    ],
    ids=str,
)
def test_what_rests_on_something_else_is_not_found(tmp_path, store, changed):
    # Another store over the same folder: as the next call of the command has it.
    assert Store(tmp_path).find(replace(TASK, **changed)) is None
    assert Store(tmp_path).find(TASK) is not None


def test_other_weights_are_another_policy(tmp_path):
    store = Store(tmp_path)
    one, other = (replace(TASK, policy=Trained(weights=weights)) for weights in ("a", "b"))
    store.keep(one, execute(one))
    assert store.find(one) is not None
    assert store.find(other) is None


def test_a_damaged_file_counts_as_none(tmp_path, store):
    (path,) = tmp_path.rglob("*.npz")
    path.write_bytes(path.read_bytes()[:200])
    assert store.find(TASK) is None


@pytest.fixture(name="tree")
def _tree(tmp_path, monkeypatch):
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "__init__.py").write_text("import policies.unrelated\n")
    (tmp_path / "policies" / "mine.py").write_text("import os\nfrom policies import helper\n")
    (tmp_path / "policies" / "helper.py").write_text("VALUE = 1\n")
    (tmp_path / "policies" / "unrelated.py").write_text("VALUE = 1\n")
    monkeypatch.setattr(sources, "_ROOT", tmp_path)
    return tmp_path / "policies"


def digest():
    sources._code.cache_clear()
    sources.digest.cache_clear()
    return sources.digest("policies.mine")


@pytest.mark.parametrize(
    ("file", "text", "changes"),
    [
        ("helper.py", "VALUE = 2\n", True),
        ("mine.py", "import os\nfrom policies import helper\nVALUE = helper.VALUE\n", True),
        ("helper.py", '"""What it is."""\nVALUE = 1  # as ever\n"""What that is."""\n', False),
        ("unrelated.py", "VALUE = 2\n", False),
    ],
)
def test_code_counts_where_it_is_imported(tree, file, text, changes):
    before = digest()
    (tree / file).write_text(text)
    assert (digest() != before) == changes


@pytest.fixture(autouse=True)
def _forget():
    yield
    sources._code.cache_clear()
    sources.digest.cache_clear()


def test_a_run_rests_on_engine_core_and_policy():
    found = sources._closure(["simulator.run", "policies.prequal"])
    assert {"simulator.engine.loop", "balancer.kernel.estimators.queue", "policies.base", "policies.prequal"} <= found
    assert "policies.peak_ewma" not in found
