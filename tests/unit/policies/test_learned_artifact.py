"""The file of a learned policy: what is written is read, and nothing else is."""

import contextlib
import io
import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.base import FloatArray
from policies.learned.artifact import Artifact, make_artifact, read_artifact, write_artifact
from policies.learned.features import FEATURES, SCHEMA
from policies.learned.network import Network, shapes

Arrays = dict[str, Any]


def artifact(seed: int = 0, **record: Any) -> Artifact:
    generator = np.random.default_rng(seed)
    network = Network(**{name: generator.random(shape) for name, shape in shapes(3).items()})
    return make_artifact(network, np.zeros(len(FEATURES)), np.arange(len(FEATURES), dtype=float), record)


GOOD = write_artifact(artifact())


def with_record(change: Callable[[dict[str, Any]], object]) -> Callable[[Arrays], object]:
    def changed(arrays: Arrays) -> None:
        record = json.loads(arrays["record"].tobytes())
        change(record)
        arrays["record"] = np.frombuffer(json.dumps(record).encode(), np.uint8)

    return changed


def changed(change: Callable[[Arrays], object]) -> bytes:
    """The good file, with its arrays changed."""
    with np.load(io.BytesIO(GOOD)) as file:
        arrays = {name: file[name] for name in file.files}
    change(arrays)
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def of_weights(change: Callable[[dict[str, FloatArray]], object]) -> bytes:
    """As training would have written it, had it found other numbers: the checksum fits."""
    network = {name: array.copy() for name, array in artifact().network._asdict().items()}
    change(network)
    good = artifact()
    return write_artifact(make_artifact(Network(**network), good.lowest, good.highest, {}))


def test_what_was_written_is_read() -> None:
    written = artifact(trained_on="sand", seeds=[1, 2])
    read = read_artifact(write_artifact(written), "mine.npz")
    assert read == written
    assert hash(read) == hash(written)
    for name, array in written.network._asdict().items():
        np.testing.assert_array_equal(getattr(read.network, name), array, strict=True)
    np.testing.assert_array_equal(read.highest, written.highest)
    assert (read.record["trained_on"], read.record["seeds"]) == ("sand", [1, 2])
    assert read.record["schema"]["hash"] == SCHEMA
    assert [each["name"] for each in read.record["schema"]["features"]] == [feature.name for feature in FEATURES]


def test_other_weights_are_another_policy() -> None:
    assert artifact(seed=1) != artifact(seed=2)
    assert artifact(seed=1) == artifact(seed=1, note="the record is for people")


def test_equal_content_gives_equal_bytes() -> None:
    assert write_artifact(artifact(note="x")) == write_artifact(read_artifact(write_artifact(artifact(note="x")), "f"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not a policy that `balancer train` wrote"),
        (b"guard: {}\n", "is not a policy that `balancer train` wrote"),
        (pickle.dumps({"w1": 1}), "is not a policy that `balancer train` wrote"),
        (GOOD[: len(GOOD) // 2], "is not a policy that `balancer train` wrote"),
        (GOOD[:-1], "is not a policy that `balancer train` wrote"),
        (changed(lambda a: a.pop("record")), r"wrote \('record'\); name one that is"),
        (changed(lambda a: a.update(record=np.zeros(3, np.uint8))), "is not a policy that `balancer train` wrote"),
        (of_weights(lambda n: n.update(tolls=np.array([(0.5, -1.0), (2.0, 0.0)]))), "tolls out of order, or below 0"),
        (of_weights(lambda n: n.update(tolls=np.array([(0.5, 1.0), (0.4, 0.0), (2.0, 0.0)]))), "tolls out of order"),
        (of_weights(lambda n: n.update(tolls=np.array([(0.5, np.inf), (2.0, 0.0)]))), "numbers in tolls that are not"),
        (of_weights(lambda n: n.update(numbers=np.zeros(5))), r"has numbers as \(5,\), expected \(6,\)"),
        (changed(lambda a: a.pop("w2")), r"has w2 as nothing, expected \(3, 3\); it was written by another version"),
        (changed(lambda a: a.update(w3=np.zeros(3))), r"has w3 as \(3,\), expected nothing"),
        (changed(lambda a: a.update(w1=a["w1"].T)), r"has w1 as \(3, 19\), expected \(19, 3\)"),
        (changed(lambda a: a.update(w1=a["w1"].astype("U8"))), r"has w1 as <U8, expected \(19, 3\)"),
        (changed(lambda a: a.update(b1=a["b1"].astype("f4"))), r"has b1 as float32, expected \(3,\)"),
        (changed(lambda a: a.update(b1=np.zeros((1, 3)))), "train it anew with `balancer train`"),
        (changed(lambda a: a.update(w1=a["w1"] + 1e-12)), "is damaged: its checksum does not match; copy it anew"),
        (changed(lambda a: a.update(highest=a["highest"] * 2)), "its checksum does not match"),
        (
            changed(with_record(lambda r: r["schema"].update(hash="0123"))),
            f"trained on other inputs .feature schema 0123, this version has {SCHEMA}.; train it anew",
        ),
        (of_weights(lambda w: w["w2"].fill(np.nan)), "has numbers in w2 that are not finite; train it anew"),
        (of_weights(lambda w: w.update(out=np.full(3, -np.inf))), "has numbers in out that are not finite"),
        (of_weights(lambda w: w.update(beta=np.array(np.nan))), "has numbers in beta that are not finite"),
        (of_weights(lambda w: w.update(beta=np.array(0.0))), "has beta 0.0, must be above 0; train it anew"),
        (of_weights(lambda w: w.update(beta=np.array(-1.0))), "has beta -1.0, must be above 0"),
    ],
)
def test_anything_else_is_refused_and_says_why_and_what_to_do(content: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^folder/mine.npz .*{reason}"):
        read_artifact(content, "folder/mine.npz")


class _Trap:
    """Unpickled, it would say so."""

    sprung = False

    def __reduce__(self) -> tuple[Any, ...]:
        return setattr, (_Trap, "sprung", True)


def test_pickles_are_never_loaded() -> None:
    trap = np.array([_Trap()], object)
    out = io.BytesIO()
    np.savez(out, w1=trap)  # savez pickles what is not a number
    for content in (out.getvalue(), changed(lambda arrays: arrays.update(w1=trap)), pickle.dumps(_Trap())):
        with pytest.raises(ValueError, match="is not a policy"):
            read_artifact(content, "f")
    assert not _Trap.sprung
    pickle.loads(pickle.dumps(_Trap()))
    assert _Trap.sprung, "the trap does not work"


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_holds_the_same(data: st.DataObject) -> None:
    content = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ValueError):
        # Some bytes are read by nobody, such as those of a date.
        assert read_artifact(bytes(content), "f") == artifact()
