"""Routers before the same language models: what is asked, and what the page makes of answers."""

import json
import math

import numpy as np
import pytest
from simulation.builders import arrivals_of, prompting

from dev.emulated_llm.server import TOKEN_BYTES
from dev.experiments.served import page, plot, record
from dev.experiments.served.candidates import CANDIDATES, OURS
from dev.experiments.served.record import Played, Recorded, one_balancer, read, save
from dev.experiments.served.replay import questions


def test_equal_blocks_have_equal_texts_and_prompts_their_tokens() -> None:
    arrivals = prompting(arrivals_of([0.0, 1.0, 2.0]), tokens=[9, 11, 5], output=3, blocks=[[1, 2], [1, 3], []])
    assert arrivals.prompts is not None
    asked = questions(arrivals, "llama")
    assert [each.at_s for each in asked] == [0.0, 1.0, 2.0]
    bodies = [json.loads(each.body) for each in asked]
    texts = [body["messages"][0]["content"] for body in bodies]
    assert [len(text) for text in texts] == [9 * TOKEN_BYTES, 11 * TOKEN_BYTES, 5 * TOKEN_BYTES]
    same = [len(list(filter(None, map(str.__eq__, texts[0], other)))) for other in texts]
    block = arrivals.prompts.block_tokens * TOKEN_BYTES
    assert texts[0][:block] == texts[1][:block]
    assert texts[0][block : 2 * block] != texts[1][block : 2 * block]
    assert same[2] < block
    assert {body["max_tokens"] for body in bodies} == {3}


def test_tensors_are_no_prompts() -> None:
    with pytest.raises(ValueError, match="does not generate"):
        questions(arrivals_of([0.0]), "m")


@pytest.fixture
def played() -> Played:
    """Ours is twice as fast as peers, and as the simulator says but for p99."""
    _, arrivals = one_balancer("chat", 400)
    seconds = np.random.default_rng(0).exponential(1.0, 400)
    live, simulated = {}, {}
    for each in CANDIDATES:
        mine = seconds * (2.0 if each.peer else 1.0)
        live[each.name] = Recorded(mine, 3 * mine, 0.5, ["503: no"] if each.peer else [], 0.02, 0.001)
        if not each.peer:
            simulated[each.name] = np.stack([mine, mine]), np.stack([3.9 * mine, 3.9 * mine])
    live[OURS].first_s[7] = math.nan
    return Played("chat", arrivals, live, simulated)


def test_ratios_and_missed_aims_are_told(played: Played) -> None:
    for peer in page.PEERS:
        found = page.ratio(played, OURS, peer, page.FIGURES[0])
        assert found.value == pytest.approx(0.5, rel=0.01)
        assert found.low <= found.value <= found.high
    problems = page.problems([played])
    assert len(problems) == len(played.simulated) * 2, "only whole answers are off, by 30%, p50 and p99"
    assert all("whole answer" in problem and "+30% (+30% to +30%)" in problem for problem in problems)
    written = page.page([played])
    for each in CANDIDATES:
        assert each.name in written
    assert problems[0] in written


def test_recorded_answers_are_read_as_they_were(played: Played, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("served")
    save(folder / "chat.json", 400, played.live)
    requests, live = read(folder / "chat.json")
    assert requests == 400
    for name, each in played.live.items():
        np.testing.assert_array_equal(live[name].first_s, each.first_s)
    plot.draw([played], folder / "served.png")
    assert (folder / "served.png").stat().st_size > 10_000


def test_the_overhead_is_what_a_lone_request_takes_beside_its_step(played: Played) -> None:
    scenario, _ = one_balancer("chat", 1)
    assert 0 < record.overhead(scenario, played.live) < 0.02
