"""Others' algorithms train on the environments, and learn what there is to learn."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor

import simulator.envs
from simulator.envs import ENVIRONMENT, FlattenFleet, FlattenFleets, FleetEnv, FleetVectorEnv
from simulator.envs.stable_baselines import StableBaselinesEnvs
from simulator.scenario import Scenario
from simulator.spec import FleetSpec, ModelSpec, ServiceTime, SimulatedWorker
from simulator.workload.workload import ModelTraffic, Workload

REQUESTS = 50
ARGUMENTS: dict[str, Any] = {"scenario": "churn", "requests": REQUESTS}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def flat() -> FlattenFleet:
    return FlattenFleet(gymnasium.make(ENVIRONMENT, **ARGUMENTS))


def batched(num_envs: int, **arguments: Any) -> StableBaselinesEnvs:
    return StableBaselinesEnvs(FlattenFleets(FleetVectorEnv(num_envs, autoreset_mode="SameStep", **arguments)))


ENVIRONMENTS: dict[str, Callable[[], Any]] = {
    "one": flat,
    "several": lambda: make_vec_env(flat, n_envs=3),
    "one batch": lambda: VecMonitor(batched(3, **ARGUMENTS)),
}


@pytest.mark.parametrize("kind", ENVIRONMENTS)
@pytest.mark.parametrize("algorithm", [PPO, MaskablePPO])
def test_it_trains(algorithm: type[PPO] | type[MaskablePPO], kind: str) -> None:
    model = algorithm("MlpPolicy", ENVIRONMENTS[kind](), n_steps=64, batch_size=64, n_epochs=2, seed=0)
    before = [parameter.clone() for parameter in model.policy.parameters()]
    model.learn(300)
    assert model.num_timesteps >= 300
    assert all(torch.isfinite(parameter).all() for parameter in model.policy.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, model.policy.parameters(), strict=True))
    assert {episode["l"] for episode in model.ep_info_buffer or ()} == {REQUESTS}


def test_dictionaries_train_too() -> None:
    model = PPO("MultiInputPolicy", gymnasium.make(ENVIRONMENT, **ARGUMENTS), n_steps=64, batch_size=64, n_epochs=1)
    model.learn(128)
    assert model.num_timesteps == 128


@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_masks_are_found_and_kept(kind: str) -> None:
    envs = ENVIRONMENTS[kind]()
    assert is_masking_supported(envs)
    model = MaskablePPO("MlpPolicy", envs, seed=0)
    observations = envs.reset()[0] if kind == "one" else envs.reset()
    masks = get_action_masks(envs)
    assert not masks.all()  # two workers are still to come
    actions, _ = model.predict(observations, action_masks=masks)
    assert np.take_along_axis(np.atleast_2d(masks), np.atleast_1d(actions)[:, None], axis=1).all()


def test_one_batch_is_several_environments_step_for_step() -> None:
    several: VecEnv = DummyVecEnv([lambda: FlattenFleet(FleetEnv(**ARGUMENTS))] * 3)
    one = batched(3, **ARGUMENTS)
    for envs in (several, one):
        envs.seed(4)
        envs.set_options({"load": 0.9})
    assert np.array_equal(one.reset(), several.reset())
    rng = np.random.default_rng(0)
    for _ in range(REQUESTS + 10):
        actions = rng.integers(one.action_space.n, size=3)  # type: ignore[attr-defined]
        mine, theirs = one.step(actions), several.step(actions)
        assert all(np.array_equal(a, b) for a, b in zip(mine[:3], theirs[:3], strict=True))
        for info, expected in zip(mine[3], theirs[3], strict=True):
            assert info["TimeLimit.truncated"] == expected["TimeLimit.truncated"]
            assert np.array_equal(info.get("terminal_observation", []), expected.get("terminal_observation", []))
        assert np.array_equal(get_action_masks(one), get_action_masks(several))


def test_one_batch_must_reset_as_sb3_expects() -> None:
    with pytest.raises(ValueError, match=r"autoreset_mode is .*NEXT_STEP.*: Stable-Baselines3 needs .*SAME_STEP"):
        StableBaselinesEnvs(FleetVectorEnv(2, **ARGUMENTS))


def test_it_learns_which_worker_is_slow() -> None:
    model = ModelSpec("m", {"*": ServiceTime((1,), (0.01,))})
    fleet = FleetSpec((model,), (SimulatedWorker("slow", speed=0.1), SimulatedWorker("fast")))
    scenario = Scenario("two", "For tests", "train", fleet, Workload(1.0, (ModelTraffic("m"),))).with_load(0.5)
    envs = batched(16, scenario=scenario, requests=64)
    learner = MaskablePPO("MlpPolicy", envs, n_steps=64, batch_size=256, n_epochs=4, gamma=0.95, seed=0)

    def to_the_fast() -> float:
        envs.seed(100)
        observations, picks = envs.reset(), []
        for _ in range(64):
            actions, _ = learner.predict(observations, action_masks=get_action_masks(envs))  # type: ignore[arg-type]
            observations, *_ = envs.step(actions)
            picks.append(actions)
        return float(np.mean(picks))

    before = to_the_fast()
    learner.learn(8 * 16 * 64)
    assert before < 0.6
    assert to_the_fast() > 0.75


def test_the_readmes_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    readme = Path(simulator.envs.__file__).with_name("README.md").read_text()
    blocks = [part.split("```")[0] for part in readme.split("```python\n")[1:]]
    assert len(blocks) >= 2
    for block in blocks:
        small = (
            block.replace("737_280", "128")
            .replace("num_envs=64", "num_envs=2")
            .replace("n_eval_episodes=64", "n_eval_episodes=1")
        )
        exec(compile(small, "README.md", "exec"), {})
    assert "trained" in capsys.readouterr().out
