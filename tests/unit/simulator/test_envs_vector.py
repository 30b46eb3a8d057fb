"""The vector environment: step for step what single ones are, and its ways to reset."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FlattenObservation

from simulator.envs import ENVIRONMENT, FlattenFleet, FlattenFleets, FleetEnv, FleetVectorEnv
from simulator.scenario import load_scenario

REQUESTS = 40
MODES = list(AutoresetMode)
SCENARIOS: dict[str, Any] = {
    "several": ["several-models", "heterogeneous-bursty", "churn", "cache-affinity"],
    "four-balancers": "four-balancers",
    "function": lambda generator: load_scenario("mixed-sizes").with_load(float(generator.uniform(0.5, 1.2))),
}
CHARGES: dict[str, Any] = {"deadline_charge_s": 0.1, "tail_charge": 0.5}


def make(mode: AutoresetMode = AutoresetMode.NEXT_STEP, num_envs: int = 3, **arguments: Any) -> FleetVectorEnv:
    arguments = {"scenario": "heterogeneous-bursty", "requests": REQUESTS, **arguments}
    return FleetVectorEnv(num_envs, autoreset_mode=mode, **arguments)


def assert_same(mine: Any, theirs: Any) -> None:
    """Observations, infos and all that they hold; infos where their masks say that they hold."""
    assert type(mine) is type(theirs)
    if isinstance(mine, tuple):
        for one, other in zip(mine, theirs, strict=True):
            assert_same(one, other)
    elif isinstance(mine, dict):
        assert mine.keys() == theirs.keys()
        for key in mine:
            if f"_{key}" in mine and not isinstance(mine[key], dict):
                where = mine[f"_{key}"]
                for one, other in zip(mine[key][where], theirs[key][where], strict=True):
                    assert_same(one, other)
            else:
                assert_same(mine[key], theirs[key])
    else:
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_it_is_single_environments_step_for_step(scenario: str, mode: AutoresetMode) -> None:
    arguments = {"scenario": SCENARIOS[scenario], "requests": REQUESTS, "max_in_system": 30, "load": (0.8, 3.0)}
    if scenario == "function":
        del arguments["load"]
    single = SyncVectorEnv([lambda: FleetEnv(**arguments, **CHARGES) for _ in range(3)], autoreset_mode=mode)
    vector = make(mode, **arguments, **CHARGES)
    assert vector.observation_space == single.observation_space
    assert vector.action_space == single.action_space
    assert_same(vector.reset(seed=11), single.reset(seed=11))
    vector.action_space.seed(1)
    ends = np.zeros((2, 3), bool)
    for _ in range(3 * REQUESTS):
        actions = vector.action_space.sample()  # some of them invalid
        mine, theirs = vector.step(actions), single.step(actions)
        assert_same(mine, theirs)
        assert_same(vector.call("action_masks"), single.call("action_masks"))
        ends |= np.stack(mine[2:4])
    assert ends[1].any()
    assert ends[0].any() or scenario == "function"


def test_it_is_made_by_name() -> None:
    vector = gymnasium.make_vec(
        ENVIRONMENT, num_envs=5, vectorization_mode="vector_entry_point", scenario="two-balancers", requests=REQUESTS
    )
    assert isinstance(vector.unwrapped, FleetVectorEnv)
    assert vector.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    observations, infos = vector.reset(seed=0)
    assert observations in vector.observation_space
    assert infos["action_mask"].shape == (5, 8)
    assert len({row.tobytes() for row in observations["workers"]}) == 5


def test_next_step_resets_without_a_reward_and_ignores_the_action() -> None:
    vector = make(num_envs=2)
    vector.reset(seed=0)
    for _ in range(REQUESTS):
        last, rewards, _, truncated, _ = vector.step(vector.action_masks().argmax(axis=1))
    assert truncated.all()
    assert (rewards < 0).all()
    first, rewards, terminated, truncated, infos = vector.step(np.array([999, -1]))
    assert not rewards.any()
    assert not (terminated | truncated | infos["invalid_action"]).any()
    assert not first["workers"][:, :, 2].any()  # nothing in flight
    assert last["workers"][:, :, 2].any()


def test_without_automatic_resets_the_mask_says_which_to_reset() -> None:
    vector = make(AutoresetMode.DISABLED, num_envs=3)
    vector.reset(seed=0)
    for _ in range(REQUESTS // 2):
        vector.step(vector.action_masks().argmax(axis=1))
    options = {"reset_mask": np.array([False, True, False]), "load": 0.3}
    observations, infos = vector.reset(options=options)
    assert infos["_action_mask"].tolist() == [False, True, False]
    assert infos["in_system"][1] == 1
    assert (infos["in_system"] > 1).tolist() == [True, False, True]
    assert observations["workers"][[0, 2], :, 2].any()
    assert set(options) == {"reset_mask", "load"}
    for _ in range(REQUESTS // 2):
        *_, truncated, _ = vector.step(vector.action_masks().argmax(axis=1))
    assert truncated.tolist() == [True, False, True]
    with pytest.raises(gymnasium.error.ResetNeeded):
        vector.step(np.zeros(3, int))
    vector.reset(options={"reset_mask": truncated})
    vector.step(np.zeros(3, int))


def test_seeds_are_one_for_all_or_one_each() -> None:
    first, second = make().reset(seed=5)[0], make().reset(seed=[7, 6, 5])[0]
    assert_same(first["workers"], second["workers"][::-1])
    vector, same = make(), make()
    vector.reset(seed=5)
    same.reset(seed=5)
    assert_same(vector.reset()[0], same.reset()[0])
    with pytest.raises(ValueError, match="2 seeds for 3 environments: give one each"):
        make().reset(seed=[1, 2])


@pytest.mark.parametrize("mask", [[True, False, True], np.zeros(3, bool), np.ones(2, bool), np.ones(3)])
def test_bad_reset_masks_are_named(mask: Any) -> None:
    with pytest.raises(ValueError, match=r"reset_mask is .*: give an array of 3 booleans"):
        make().reset(options={"reset_mask": mask})


def test_actions_are_one_each_and_after_a_reset() -> None:
    vector = make()
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        vector.step(np.zeros(3, int))
    vector.reset(seed=0)
    with pytest.raises(ValueError, match=r"actions have shape \(2,\): give one for each of 3"):
        vector.step(np.zeros(2, int))
    with pytest.raises(ValueError, match="give each environment a worker from 0"):
        vector.step(np.full(3, 99))


def test_what_is_returned_is_not_written_to_again() -> None:
    vector = make()
    kept: list[Any] = [vector.reset(seed=0)]
    kept += [vector.step(np.zeros(3, int)) for _ in range(3)]
    arrays = [[*step[0].values(), *step[-1].values(), *step[1:-1]] for step in kept]
    for i, earlier in enumerate(arrays):
        for later in arrays[i + 1 :]:
            assert not any(np.shares_memory(a, b) for a in earlier for b in later)


@pytest.mark.parametrize("mode", MODES)
def test_the_flat_one_is_flat_in_both_kinds(mode: AutoresetMode) -> None:
    single = FleetEnv("several-models", requests=REQUESTS)
    flat, theirs = FlattenFleet(single), FlattenObservation(single)
    assert flat.observation_space == theirs.observation_space
    assert_same(flat.reset(seed=1)[0], theirs.reset(seed=1)[0])
    assert np.array_equal(flat.action_masks(), single.action_masks())
    vector = FlattenFleets(make(mode, scenario="several-models"))
    assert vector.single_observation_space == flat.observation_space
    observations, _ = vector.reset(seed=1)
    assert observations in vector.observation_space
    assert np.array_equal(observations[0], flat.reset(seed=1)[0])
    for _ in range(REQUESTS):
        observations, _, _, truncated, infos = vector.step(vector.action_masks().argmax(axis=1))
        flat_observation, *_ = flat.step(int(flat.action_masks().argmax()))
    assert truncated.all()
    if mode is AutoresetMode.SAME_STEP:
        assert infos["final_obs"][0].shape == flat.observation_space.shape
        observations = np.stack(infos["final_obs"])
    assert np.array_equal(observations[0], flat_observation)
    assert len(vector.call("action_masks")) == 3


def test_every_fleet_has_its_picture() -> None:
    vector = make(render_mode="rgb_array", scenario=["several-models", "churn"])
    vector.reset(seed=2)
    frames = vector.render()
    assert frames is not None
    assert [frame.shape for frame in frames] == [(540, 960, 3)] * 3
    assert make().render() is None
