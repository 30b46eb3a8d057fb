"""The Gymnasium environment: its interface, what it shows, what it charges, when it ends."""

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env

from policies import ConsistentHash, ExpectedLatency
from simulator.envs import ENVIRONMENT, FlattenFleet, FleetEnv
from simulator.envs.episodes import SPARE
from simulator.envs.observation import LONGEST_S, WORKER_COLUMNS
from simulator.result import Status
from simulator.run import run
from simulator.scenario import Scenario, load_scenario, scenario_names
from simulator.spec import BatchingSpec, Fault, FleetSpec, ModelSpec, ServiceTime, SimulatedWorker
from simulator.workload.workload import ModelTraffic, Workload

REQUESTS = 60
HOME = ConsistentHash(balance_factor=np.inf)
COLUMN = {name: i for i, name in enumerate(WORKER_COLUMNS)}


def scenario_of(
    *, faults: tuple[Fault, ...] = (), load: float = 0.8, workers: int = 3, balancers: int = 1, **batching: Any
) -> Scenario:
    """A small fleet: two at the start, the rest absent."""
    model = ModelSpec("m", {"*": ServiceTime((1, 4), (0.01, 0.02))}, batching=BatchingSpec(4, **batching))
    specs = tuple(SimulatedWorker(f"w{w}", speed=1.0 + w, present=w < 2) for w in range(workers))
    fleet = FleetSpec((model,), specs, balancers=balancers, faults=faults)
    workload = Workload(1.0, (ModelTraffic("m", deadline_s=0.04),))
    return Scenario("small", "For tests", "train", fleet, workload).with_load(load)


def best(observation: dict[str, Any]) -> int:
    workers = observation["workers"]
    completion_s = np.where(workers[:, COLUMN["eligible"]] > 0, workers[:, COLUMN["completion_s"]], np.inf)
    return int(completion_s.argmin())


def play(env: gymnasium.Env[Any, Any], seed: int = 0, options: dict[str, Any] | None = None) -> list[Any]:
    """All steps of an episode under the expected latency."""
    observation, _ = env.reset(seed=seed, options=options)
    steps = []
    while True:
        step = env.step(best(observation))
        steps.append(step)
        if step[2] or step[3]:
            return steps
        observation = step[0]


def rewards(steps: list[Any]) -> float:
    return sum(step[1] for step in steps)


@pytest.mark.parametrize("scenario", ["several-models", "four-balancers", "chat"])
def test_gymnasium_finds_nothing_wrong(scenario: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(ENVIRONMENT, scenario=scenario, requests=REQUESTS).unwrapped)


def test_its_name_may_say_where_it_is() -> None:
    made = gymnasium.make(f"simulator.envs:{ENVIRONMENT}", requests=REQUESTS)
    assert isinstance(made.unwrapped, FleetEnv)


def test_stable_baselines_finds_nothing_wrong_with_the_flat_one() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sb3_check_env(FlattenFleet(gymnasium.make(ENVIRONMENT, scenario="several-models", requests=REQUESTS)))


@pytest.mark.parametrize("scenario", scenario_names())
def test_observations_are_within_their_bounds_whatever_is_played(scenario: str) -> None:
    env = FleetEnv(scenario, requests=REQUESTS, load=None if scenario == "deep-overload" else 1.2)
    observation, info = env.reset(seed=5)
    assert np.isfinite(env.observation_space["workers"].high).all()  # type: ignore[index]
    env.action_space.seed(5)
    ended = False
    while not ended:
        assert observation in env.observation_space
        mask = env.action_masks()
        assert mask.any()
        assert np.array_equal(info["action_mask"], mask)
        assert np.array_equal(observation["workers"][:, COLUMN["eligible"]] > 0, mask)
        observation, _, terminated, truncated, info = env.step(env.action_space.sample(info["action_mask"]))
        assert not info["invalid_action"]
        ended = terminated or truncated
    assert observation in env.observation_space


@pytest.mark.parametrize("scenario", ["four-balancers", "cache-affinity", "churn", "several-models"])
def test_columns_are_those_of_the_view(scenario: str) -> None:
    env = FleetEnv(scenario, requests=REQUESTS, load=1.2)
    observation, _ = env.reset(seed=1)
    batch = env._episodes.batch
    fleet = batch.fleets[0]
    for _ in range(REQUESTS // 2):
        view, request = batch.view(), batch.request()
        columns = {name: getattr(view, name)[0] for name in WORKER_COLUMNS.keys() - {"home"}}
        if request.key is not None:
            columns["home"] = HOME.probabilities(request, view)[0]
        for name, column in columns.items():
            seen, expected = observation["workers"][:, COLUMN[name]], np.minimum(column, WORKER_COLUMNS[name])
            # NumPy's exponential may differ from the compiled one in the last bit.
            tolerance = 1e-6 if name in ("latency_s", "error_rate") else 0.0
            announced = batch.sim.known.added[: len(seen)]
            expected = np.where(announced, expected, 0.0).astype(np.float32)
            np.testing.assert_allclose(seen, expected, rtol=tolerance, err_msg=name)
        rows, deadline_s, priority, balancers, prompt_tokens, *models = observation["request"]
        assert (rows, priority) == (np.ravel(request.rows)[0], np.ravel(request.priority)[0])
        assert balancers == fleet.balancers
        assert prompt_tokens == np.ravel(request.prompt_tokens)[0]
        assert models == [float(m == batch.sim.pending.model[0]) for m in range(len(fleet.models))]
        assert deadline_s == np.float32(min(np.ravel(request.deadline_s)[0], LONGEST_S))
        observation, *_ = env.step(best(observation))


def test_a_key_has_a_home_and_keeps_it() -> None:
    env = FleetEnv("cache-affinity", requests=REQUESTS)
    observation, _ = env.reset(seed=1)
    homes: dict[int, int] = {}
    for _ in range(REQUESTS - 1):
        home = observation["workers"][:, COLUMN["home"]]
        assert sorted(home)[-2:] == [0, 1]
        key = int(np.ravel(env._episodes.batch.request().key)[0])  # type: ignore[arg-type]
        assert homes.setdefault(key, int(home.argmax())) == home.argmax()
        observation, *_ = env.step(int(home.argmax()))
    assert len(homes) < REQUESTS - 1  # some came again
    assert len(set(homes.values())) > 1


def test_workers_that_nobody_was_told_of_are_blank() -> None:
    env = FleetEnv(scenario_of(), requests=REQUESTS)
    observation, _ = env.reset(seed=1)
    assert not observation["workers"][2].any()
    assert observation["workers"][1, COLUMN["weight"]] == 1


def test_the_expected_latency_in_the_environment_is_the_policy_in_the_simulator() -> None:
    env, policy = (
        FleetEnv("several-models", requests=400),
        ExpectedLatency(temperature=0.0, error_penalty_s=0.0, delayed_share=0.0, delayed_share_other_models=0.0),
    )
    observation, _ = env.reset(seed=3)
    steps: list[Any] = []
    while not steps or not steps[-1][3]:
        batch = env._episodes.batch
        pick = int(batch.draw(batch.probabilities(policy))[0])  # of those that tie
        completion_s = observation["workers"][:, COLUMN["completion_s"]]
        assert completion_s[pick] == completion_s[env.action_masks()].min()
        steps.append(env.step(pick))
        observation = steps[-1][0]
    played = env.result()
    scenario = load_scenario("several-models")
    generator = gymnasium.utils.seeding.np_random(3)[0]
    generator.integers(1)  # which of one scenario
    seed = int(generator.integers(1 << 31))
    whole = run(scenario.fleet, [scenario.arrivals(seed, 400 + SPARE)], policy, seeds=[seed])
    assert len(steps) == 400
    assert np.array_equal(played.picked[0, :400], whole.picked[0, :400])
    ended = played.status[0] == Status.OK
    assert 300 < ended.sum() <= 400
    assert np.array_equal(played.latency_s[0, ended], whole.latency_s[0, ended])
    # Little's law: the integral until the episode was cut, from the latencies of the run that was not.
    cut_s = whole.arrival_s[0, 400]
    gone_s = whole.arrival_s[0] + whole.latency_s[0] - scenario.fleet.network.to_client_s
    in_system_s = np.minimum(gone_s, cut_s) - np.minimum(whole.arrival_s[0], cut_s)
    assert rewards(steps) == pytest.approx(-10 * in_system_s.sum())
    assert rewards(steps) == pytest.approx(-10 * played.pending_integral_s[0])


def test_an_episode_is_cut_at_the_next_request() -> None:
    env = FleetEnv(scenario_of(), requests=REQUESTS)
    *before, last = play(env)
    assert not any(terminated or truncated for _, _, terminated, truncated, _ in before)
    observation, _, terminated, truncated, info = last
    assert len(before) == REQUESTS - 1
    assert truncated
    assert not terminated
    # The last observation is the next decision's, with its request and its queues: a value can be estimated from it.
    assert observation["request"][0] == 1
    assert info["action_mask"].any()
    assert info["now_s"] == env._episodes.batch.sim.demand.time_s[0, REQUESTS]
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        env.step(0)


def test_an_episode_that_runs_dry_ends_with_an_empty_observation() -> None:
    """Everybody leaves for good, so whoever comes later is refused before the agent is asked."""
    scenario = scenario_of(faults=(Fault("leave", "w0", 0.1), Fault("leave", "w1", 0.1)))
    env = FleetEnv(scenario, requests=REQUESTS, deadline_charge_s=1.0, reward_scale=1.0)
    steps = play(env)
    observation, _, terminated, truncated, info = steps[-1]
    assert truncated
    assert not terminated
    assert len(steps) < REQUESTS
    assert not observation["request"].any()
    assert not observation["workers"][:, COLUMN["eligible"]].any()
    assert info["action_mask"].all()
    assert info["in_system"] == 0
    view = env._episodes.batch.view()  # of the last decision's request and moment
    for name in ("completion_s", "service_s", "report_age_s"):
        expected = getattr(view, name)[0].clip(0.0, LONGEST_S) * env._episodes.batch.sim.known.added
        assert np.array_equal(observation["workers"][:, COLUMN[name]], expected.astype(np.float32)), name
    result = env.result()
    refused = int((result.status == Status.NO_WORKER).sum())
    late = int((result.latency_s > result.deadline_s).sum())
    assert refused == REQUESTS + SPARE - len(steps)
    assert rewards(steps) == pytest.approx(-result.pending_integral_s[0] - refused - late)


def test_charges_are_for_late_and_failed_requests_and_for_the_tail() -> None:
    scenario = scenario_of(faults=(Fault("errors", "w1", 0.1, 0.2, amount=0.5),), load=1.3)
    charges: dict[str, Any] = {"reward_scale": 1.0, "deadline_charge_s": 2.0, "tail_charge": 0.5}
    totals = []
    for tail_from_s in (None, 0.06):
        env = FleetEnv(scenario, requests=400, tail_from_s=tail_from_s, **charges)
        steps = play(env, seed=2)
        result = env.result()
        ended = result.status[0] != Status.UNFINISHED
        failed = ended & (result.status[0] != Status.OK)
        late = ended & (result.latency_s[0] > result.deadline_s[0])
        beyond_s = result.latency_s[0, ended] - (result.deadline_s[0, ended] if tail_from_s is None else tail_from_s)
        assert failed.any()
        assert late.any()
        expected = result.pending_integral_s[0] + 2.0 * (failed | late).sum() + 0.5 * np.maximum(beyond_s, 0).sum()
        assert rewards(steps) == pytest.approx(-expected)
        totals.append(rewards(steps))
    assert totals[0] < totals[1]  # the tail begins at 40 ms, or at 60


def test_too_many_in_the_system_terminates_and_does_not_pay() -> None:
    scenario = scenario_of(load=2.0)
    env = FleetEnv(scenario, requests=400, max_in_system=50, reward_scale=1.0)
    steps = play(env)
    *_, terminated, truncated, info = steps[-1]
    assert terminated
    assert not truncated
    assert info["in_system"] == 51
    demand = env._episodes.batch.sim.demand
    left_s = demand.time_s[0, 400] - info["now_s"]
    assert left_s > 0
    assert rewards(steps) == pytest.approx(-env.result().pending_integral_s[0] - 50 * left_s)


def test_an_action_that_may_not_be_taken_goes_to_the_least_pending() -> None:
    env = FleetEnv(scenario_of(), requests=REQUESTS)
    env.reset(seed=0)
    _, _, _, _, info = env.step(0)
    assert not info["invalid_action"]
    _, _, _, _, info = env.step(2)
    assert info["invalid_action"]
    assert env.result().picked[0, :2].tolist() == [0, 1]
    for action in (-1, 3):
        with pytest.raises(ValueError, match="give each environment a worker from 0 to 2"):
            env.step(action)


def test_the_least_pending_is_the_deciding_balancers() -> None:
    env = FleetEnv(["four-balancers", scenario_of(workers=9, balancers=4)], requests=REQUESTS)
    env.reset(seed=0, options={"scenario": scenario_of(workers=3, balancers=4), "load": 1.5})
    batch = env._episodes.batch
    for _ in range(REQUESTS - 1):
        expected = np.where(batch.sim.decision.mask, batch.view().pending, np.inf)[0].argmin()
        *_, info = env.step(8)  # no such worker in this fleet
        assert info["invalid_action"]
        assert env._episodes.last_pick[0] == expected


def test_equal_seeds_are_equal_and_episodes_differ() -> None:
    env, other = FleetEnv("several-models", requests=REQUESTS), FleetEnv("several-models", requests=REQUESTS)
    first, second = play(env, seed=7), play(other, seed=7)
    assert [step[1] for step in first] == [step[1] for step in second]
    observations = [one.reset()[0]["request"].tolist() for one in (env, env, other, other)]
    times = {env.reset()[1]["now_s"] for _ in range(3)}
    assert observations[:2] == observations[2:]
    assert len(times) == 3
    assert rewards(play(env, seed=8)) != rewards(first)


def test_load_of_all_episodes_or_of_one() -> None:
    env = FleetEnv("several-models", requests=REQUESTS, load=0.5)
    half = play(env)[-1][4]["now_s"]
    assert play(env, options={"load": 1.0})[-1][4]["now_s"] == pytest.approx(half / 2, rel=0.2)
    ranging = FleetEnv("homogeneous-steady", requests=REQUESTS, load=(0.2, 2.0))
    lengths_s = [play(ranging, seed=seed)[-1][4]["now_s"] for seed in range(6)]
    assert max(lengths_s) > 2 * min(lengths_s)


def test_scenarios_take_turns_and_are_filled_up() -> None:
    env = FleetEnv(["several-models", "heterogeneous-bursty"], requests=REQUESTS)
    assert env.observation_space["workers"].shape == (12, len(WORKER_COLUMNS))  # type: ignore[index]
    seen = set()
    env.reset(seed=0)
    for _ in range(8):
        observation, _ = env.reset()
        names = {scenario.name for scenario in env._episodes.scenarios if scenario}
        workers = len(env._episodes.batch.fleets[0].workers)
        assert not observation["workers"][workers:].any()
        seen |= names
    assert seen == {"several-models", "heterogeneous-bursty"}


@pytest.mark.parametrize(
    ("scenario", "beside"),
    [*(("mixed-sizes", beside) for beside in ("several-models", "churn", "priorities")), ("chat", "mixed-sizes")],
)
def test_a_scenario_is_the_same_in_a_larger_fleets_arrays(scenario: str, beside: str) -> None:
    alone = FleetEnv(scenario, requests=200)
    roomy = FleetEnv([beside, scenario], requests=200)
    play(roomy, options={"scenario": beside})  # leaves its traces
    steps, there = (play(env, seed=4, options={"scenario": scenario}) for env in (alone, roomy))
    assert [step[1] for step in steps] == [step[1] for step in there]


def test_a_function_may_make_the_scenarios() -> None:
    def drawn(generator: np.random.Generator) -> Scenario:
        return scenario_of(workers=int(generator.integers(2, 6)), load=0.7)

    env = FleetEnv(drawn, requests=REQUESTS)
    assert env.action_space.n == 5  # type: ignore[attr-defined]
    env.reset(seed=1)
    fleets = set()
    for _ in range(10):
        env.reset()
        fleets.add(len(env._episodes.batch.fleets[0].workers))
    assert len(fleets) > 2
    play(env)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scenario": []}, "scenario is an empty list: name at least one"),
        ({"requests": 1}, "requests is 1: give a finite number of at least 2"),
        ({"load": -1.0}, "load is -1.0: give a share"),
        ({"load": "high"}, "load is 'high': give a share"),
        ({"load": (0.9, 0.5)}, "the lower share first"),
        ({"reward_scale": 0.0}, "reward_scale is 0.0"),
        ({"deadline_charge_s": -2.0}, "deadline_charge_s is -2.0"),
        ({"max_in_system": 0}, "max_in_system is 0"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FleetEnv(**arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lod": 1}, "reset option 'lod' is not known: give scenario or load"),
        ({"load": 0.0}, "load is 0.0"),
        ({"scenario": "cache-affinity"}, "'cache-affinity' does not fit: the fleet needs .* entries.*; name it"),
        ({"scenario": "two-balancers"}, "the fleet needs 2 balancers"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    env = FleetEnv("several-models", requests=REQUESTS)
    with pytest.raises(ValueError, match=message):
        env.reset(options=options)


def test_rendering_shows_what_lies_where() -> None:
    env = gymnasium.make(ENVIRONMENT, scenario="several-models", requests=REQUESTS, load=1.3, render_mode="rgb_array")
    play(env)
    frame = env.render()
    assert isinstance(frame, np.ndarray)
    assert frame.shape == (540, 960, 3)
    assert frame.dtype == np.uint8
    colours = {tuple(colour) for colour in frame.reshape(-1, 3)}
    assert {(0, 114, 178), (213, 94, 0), (0, 158, 115)} < colours
    play(env, seed=1)
    assert not np.array_equal(frame, env.render())  # type: ignore[arg-type]
    assert FleetEnv(requests=REQUESTS).render() is None
    with pytest.raises(ValueError, match="call reset"):
        FleetEnv(requests=REQUESTS, render_mode="rgb_array").render()


@pytest.mark.parametrize("scenario", ["big-fleet", "churn", "autoscale", "stale-reports"])
def test_rendering_has_room_for_every_fleet(scenario: str) -> None:
    env = FleetEnv(scenario, requests=REQUESTS, render_mode="rgb_array")
    env.reset(seed=0)
    frame = env.render()
    assert frame is not None
    assert len(np.unique(frame.reshape(-1, 3), axis=0)) > 10
