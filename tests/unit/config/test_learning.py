"""The file of `balancer learn` over the config: what it can set, and what is refused."""

import asyncio
from pathlib import Path

import pytest
from support.weights import write_weights

from balancer.config import frontend
from balancer.config.config import Config, ConfigError, load
from balancer.config.learning import NAME, Learned, with_learned, write_learned
from balancer.config.watch import ConfigState, watch

LEARNED = Learned(stage="resting", since_s=5.0, words="it gains", kept="policy-1.npz")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "balancer.yaml"
    source.write_text("policy: wlpr\nlearning: {folder: learned, shadow_share: 0.5, shares: [0.2, 1.0], step_s: 7}\n")
    (tmp_path / "learned").mkdir()
    for number in (1, 2):
        write_weights(tmp_path / "learned" / f"policy-{number}.npz", beta=float(number))
    return source


def over(source: Path, learned: Learned) -> Config:
    write_learned(source.parent / "learned" / NAME, learned)
    return with_learned(load(source), source)[0]


def test_what_is_kept_stands_in_the_policys_place(source: Path) -> None:
    found = over(source, LEARNED)
    assert (found.policy.name, found.shadow, found.rollout) == ("learned", None, None)
    assert found.policy.options["file"] == str(source.parent / "learned" / "policy-1.npz")


def test_what_is_tried_looks_on_or_is_rolled_out_as_the_config_says(source: Path) -> None:
    looks_on = over(source, Learned(stage="shadow", since_s=5.0, tried="policy-2.npz"))
    assert looks_on.policy.name == "wlpr"
    assert looks_on.shadow is not None
    assert (looks_on.shadow.name, looks_on.shadow.share) == ("learned", 0.5)
    comes = over(source, Learned(stage="rollout", since_s=5.0, kept="policy-1.npz", tried="policy-2.npz"))
    assert comes.rollout is not None
    assert (comes.policy.options["file"][-12:], comes.rollout.options["file"][-12:]) == ("policy-1.npz", "policy-2.npz")
    assert (comes.rollout.shares, comes.rollout.step_s) == ((0.2, 1.0), 7.0)


def test_without_a_file_or_switched_off_there_is_the_config_alone(source: Path) -> None:
    assert with_learned(load(source), source) == (load(source), None, {})
    write_learned(source.parent / "learned" / NAME, LEARNED)
    source.write_text(source.read_text().replace("folder: learned", "folder: learned, enabled: false"))
    assert with_learned(load(source), source) == (load(source), None, {})


def test_no_note_is_taken_of_what_waits_for_a_restart(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend, "_missing", lambda: None)
    state = ConfigState(load(source), str(source), 0.0)
    write_learned(source.parent / "learned" / NAME, LEARNED)
    source.write_text(source.read_text() + "holding: {models: {m: {}}}\n")
    with pytest.raises(ConfigError, match="needs a restart"):
        state.with_learned(load(source))
    assert state.learned is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("not json", "is not what balancer learn writes"),
        ("[" * 100_000, "is not what balancer learn writes"),
        ('{"stage": "resting", "since_s": 1, "kept": "../other.npz"}', "kept"),
        ('{"stage": "resting", "since_s": 1, "kept": "policy-9.npz"}', "policy-9.npz"),
        ('{"stage": "resting", "since_s": 1, "tried": "policy-1.npz"}', "tried"),
        ('{"stage": "shadow", "since_s": 1}', "tried"),
        ('{"stage": "resting", "since_s": 1, "listen": {"envoy": "0.0.0.0:1"}}', "listen"),
        ('{"stage": "resting", "since_s": 1, "words": "' + "x" * 600 + '"}', "words"),
        ("x" * (2**20 + 1), "is not what balancer learn writes"),
    ],
)
def test_what_the_learner_does_not_write_is_refused_and_named(source: Path, content: str, words: str) -> None:
    file = source.parent / "learned" / NAME
    file.write_text(content)
    with pytest.raises(ConfigError) as refused:
        with_learned(load(source), source)
    assert str(file) in str(refused.value)
    assert words in str(refused.value)


async def test_it_is_followed_like_the_config_and_bad_it_changes_nothing(source: Path) -> None:
    state, seen, stop = (
        ConfigState(load(source), str(source), 0.0),
        asyncio.Queue[Config | ConfigError](),
        asyncio.Event(),
    )
    file = source.parent / "learned" / NAME
    following = asyncio.create_task(
        watch(source, seen.put_nowait, seen.put_nowait, stop, overrides=state.with_learned, beside=lambda: file)
    )

    async def next_one() -> Config | ConfigError:
        return await asyncio.wait_for(seen.get(), 30)

    first = await next_one()
    write_learned(file, LEARNED)
    kept = await next_one()
    assert isinstance(first, Config)
    assert isinstance(kept, Config)
    assert (first.policy.name, kept.policy.name, state.learned) == ("wlpr", "learned", LEARNED)
    assert state.as_json()["overrides"]["policy"]["name"] == "learned"
    file.write_text("{}")
    assert isinstance(await next_one(), ConfigError)
    assert state.learned == LEARNED
    file.unlink()
    gone = await next_one()
    assert isinstance(gone, Config)
    assert (gone.policy.name, state.learned) == ("wlpr", None)
    stop.set()
    await following


def test_words_for_people() -> None:
    assert LEARNED.in_words() == "resting (it gains); policy-1.npz is in force"
    tried = Learned(stage="rollout", since_s=1.0, tried="policy-2.npz")
    assert tried.in_words() == "rollout of policy-2.npz; the config's policy is in force"


def test_a_folder_whose_name_no_file_system_takes_is_refused_in_words(source: Path) -> None:
    source.write_text(f"learning: {{folder: {'x' * 300}}}\n")
    with pytest.raises(ConfigError, match="File name too long"):
        with_learned(load(source), source)
