"""Continuous batching by hand: what a step takes, when tokens are there, what caches and memory do."""

from collections.abc import Sequence

import numpy as np
import pytest
from simulation.builders import arrivals_of, fleet_of, prompting

from policies.round_robin import RoundRobin
from simulator.arrivals import Arrivals
from simulator.result import Result
from simulator.run import run
from simulator.spec import BatchingSpec, FleetSpec, GeneratingDevice, GenerationSpec, ModelSpec, ServiceTime

BASE_S, TOKEN_S = 1.0, 0.125
"""A step takes so long, and so much for each of its tokens."""


def generates(
    memory_tokens: int = 1000, step_tokens: int = 8, max_sequences: int = 4, levels: int = 1, **device: float
) -> FleetSpec:
    """One worker."""
    service = ServiceTime((1, 2), (BASE_S + TOKEN_S, BASE_S + 2 * TOKEN_S))
    generation = GenerationSpec({"*": GeneratingDevice(memory_tokens, **device)}, step_tokens, max_sequences)
    batching = BatchingSpec(priority_levels=levels)
    return fleet_of(ModelSpec("m", {"*": service}, batching=batching, generation=generation))


def answered(fleet: FleetSpec, arrivals: Arrivals) -> Result:
    return run(fleet, [arrivals], RoundRobin())


def steps_s(*tokens: int) -> float:
    return sum(BASE_S + count * TOKEN_S for count in tokens)


def test_a_prompt_is_computed_in_chunks_and_each_token_takes_a_step() -> None:
    result = answered(generates(), prompting(arrivals_of([0.0]), tokens=20, output=3))
    assert result.first_s[0, 0] == steps_s(8, 8, 4)
    assert result.latency_s[0, 0] == steps_s(8, 8, 4, 1, 1)
    assert result.executions[0, 0] == 5


def test_attention_grows_with_what_is_before_a_token() -> None:
    fleet = generates(context_s=2.0, attention_s=4.0)
    result = answered(fleet, prompting(arrivals_of([0.0]), tokens=12, output=2))
    # Pairs of a token and one before it or itself, half of the own ones: 8 * 8 / 2, and 4 * 8 + 4 * 4 / 2.
    assert result.first_s[0, 0] == steps_s(8, 4) + 4.0 * (32 + 40)
    assert result.latency_s[0, 0] - result.first_s[0, 0] == steps_s(1) + 2.0 * 12


def test_those_that_decode_go_before_prompts() -> None:
    arrivals = prompting(arrivals_of([0.0, 0.5]), tokens=[8, 14], output=[4, 1])
    result = answered(generates(), arrivals)
    # The second is there from the second step on, of which one token is the first's.
    assert result.latency_s[0, 0] == steps_s(8, 8, 8, 1)
    assert result.latency_s[0, 1] == steps_s(8, 8, 8) - 0.5


@pytest.mark.parametrize(
    ("blocks", "computed"),
    [
        ([[1, 2], [1, 2]], 1),  # at least one token is computed, so of two whole blocks one is used
        ([[1, 2], [1, 3]], 5),
        ([[1, 2], [3, 2]], 9),
        ([[], []], 9),
    ],
)
def test_what_is_cached_of_a_prompt_is_not_computed(blocks: Sequence[Sequence[int]], computed: int) -> None:
    arrivals = prompting(arrivals_of([0.0, 100.0]), tokens=9, blocks=blocks)
    result = answered(generates(step_tokens=16), arrivals)
    assert result.latency_s[0].tolist() == [steps_s(9), steps_s(computed)]


def test_blocks_that_were_used_longest_ago_make_room() -> None:
    # Memory for 12 tokens: three blocks. The third prompt drops the second's, as the first's was used again.
    texts = [[1], [2], [1], [3], [1], [2]]
    arrivals = prompting(arrivals_of(np.arange(6) * 100.0), tokens=5, blocks=texts)
    result = answered(generates(memory_tokens=12, step_tokens=16), arrivals)
    assert [round((s - BASE_S) / TOKEN_S) for s in result.latency_s[0]] == [5, 5, 1, 5, 1, 5]


def test_nobody_is_admitted_before_memory_has_room_for_the_prompt() -> None:
    arrivals = prompting(arrivals_of([0.0, 0.5]), tokens=8, output=[3, 1])
    result = answered(generates(memory_tokens=16, step_tokens=16), arrivals)
    assert result.latency_s[0, 0] == steps_s(8, 1, 1)
    assert result.latency_s[0, 1] == steps_s(8, 1, 1, 8) - 0.5


def test_the_one_admitted_last_gives_way_where_memory_runs_out() -> None:
    arrivals = prompting(arrivals_of([0.0, 0.0]), tokens=[4, 4], output=[6, 4])
    result = answered(generates(memory_tokens=11, step_tokens=16), arrivals)
    # After two steps both hold five tokens, and a sixth of both does not fit. The second, of which four tokens and two
    # answers are to be computed anew, does not fit beside the first until that has left.
    assert result.latency_s[0].tolist() == [steps_s(8, 2, 1, 1, 1, 1), steps_s(8, 2, 1, 1, 1, 1, 6, 1)]


def test_levels_go_in_order() -> None:
    arrivals = prompting(arrivals_of([0.0, 0.25, 0.5], priority=[1, 2, 1]), tokens=8)
    result = answered(generates(max_sequences=1, levels=2), arrivals)
    order = np.argsort(result.arrival_s[0] + result.latency_s[0])
    assert order.tolist() == [0, 2, 1]
