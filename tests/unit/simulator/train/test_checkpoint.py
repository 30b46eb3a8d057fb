"""Checkpoints: whole or not at all, and exact."""

from pathlib import Path

import numpy as np
import pytest

from policies.learned.network import Network
from simulator.train.plan import initial
from simulator.train.trainer import FILE, Checkpoint, read_checkpoint, write_whole


def network(seed: int) -> Network:
    return initial(np.random.default_rng(seed), hidden=3, beta=20.0)


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    state = {"vector": np.random.default_rng(0).normal(size=9), "optimiser/step": np.array(3.0)}
    curve = [{"iteration": 0, "cost": 0.1 + 0.2}, {"iteration": 10, "cost": float("inf")}]
    Checkpoint(state, network(1), network(2), 10, curve, 12.5).write(tmp_path)
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert found.algorithm.keys() == state.keys()
    for name, array in state.items():
        np.testing.assert_array_equal(found.algorithm[name], array)
    for one, other in ((found.best, network(1)), (found.last, network(2))):
        for own, expected in zip(one, other, strict=True):
            np.testing.assert_array_equal(own, expected)
    assert (found.best_iteration, found.curve, found.wall_s) == (10, curve, 12.5)


def test_there_is_none_in_an_empty_folder(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path) is None


def test_a_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is killed while writing leaves the file as it was."""
    path = tmp_path / "file"
    write_whole(path, b"old")

    class Killed(BaseException):
        pass

    def killed(_: int) -> None:
        raise Killed

    monkeypatch.setattr("os.fsync", killed)
    with pytest.raises(Killed):
        write_whole(path, b"new, and longer")
    assert path.read_bytes() == b"old"
    monkeypatch.undo()
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04 cut off"])
def test_a_damaged_one_is_refused_with_the_remedy(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(ValueError, match=r"checkpoint\.npz is damaged .*begin anew in another folder"):
        read_checkpoint(tmp_path)
