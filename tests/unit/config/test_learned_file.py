"""The file of a learned policy in the config: found beside it, checked with it, read once."""

from pathlib import Path

import pytest
from support.weights import write_weights

from balancer.config import config
from balancer.config.config import ConfigError

MINE = "policy: {name: learned, options: {file: mine.npz}}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A config that names weights which lie beside it."""
    path = tmp_path / "balancer.yaml"
    path.write_text(MINE)
    write_weights(tmp_path / "mine.npz")
    return path


def test_it_is_found_from_the_folder_of_the_config(file: Path) -> None:
    loaded = config.load(file)
    assert loaded.policy.options == {"file": str(file.parent / "mine.npz")}
    assert loaded.policy.built.digest == write_weights(file.parent / "mine.npz")


def test_without_one_it_says_who_writes_it() -> None:
    with pytest.raises(ConfigError, match=r"policy\.options\.file: is missing .* `balancer train --out FOLDER` wrote"):
        config.from_mapping({"policy": {"name": "learned"}})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "mine.npz cannot be read: No such file or directory; put the file there or name another"),
        (b"", "is not a policy that `balancer train` wrote"),
        (b"x" * 100, "is not a policy that `balancer train` wrote"),
    ],
)
@pytest.mark.parametrize("section", ["policy", "shadow", "rollout"])
def test_a_bad_one_is_refused_by_field_value_and_remedy(
    file: Path, section: str, content: bytes | None, words: str
) -> None:
    (file.parent / "mine.npz").unlink()
    if content is not None:
        (file.parent / "mine.npz").write_bytes(content)
    file.write_text(MINE.replace("policy", section))
    with pytest.raises(ConfigError) as caught:
        config.load(file)
    assert f'{file}:1: {section}.options: {{"file": "mine.npz"}} is not allowed' in str(caught.value)
    assert words in str(caught.value)


def test_what_the_check_read_is_what_serves_even_if_the_file_is_gone(file: Path) -> None:
    file.write_text(MINE + "shadow: {name: learned, options: {file: mine.npz}, share: 1.0}\n")
    loaded = config.load(file)
    (file.parent / "mine.npz").unlink()
    policy = loaded.policy.built
    assert policy.digest
    assert loaded.plan(policy).shadow == policy


def test_other_weights_under_the_same_name_are_another_config(file: Path) -> None:
    before = config.load(file)
    assert config.load(file) == before
    write_weights(file.parent / "mine.npz", beta=5.0)
    assert config.load(file) != before
