"""Who has computed what prompts begin with: by hand, and in a fleet that is told what happened."""

import math
from collections import OrderedDict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from support.estimators import allocate

from balancer import bounds
from balancer.kernel.estimators import prefixes
from balancer.kernel.estimators.prefixes import MOST_CHECKPOINTS, PREFIX_PLACES, PREFIX_WAYS, Prefixes, next_checkpoint
from balancer.scheduler.events import (
    Finished,
    FirstToken,
    ModelReport,
    Report,
    SentPrompt,
    Withdrawn,
    WorkerAdded,
    WorkerRemoved,
)
from balancer.scheduler.router import Router
from policies.base import Request
from policies.hashing import mix
from policies.least_requests import LeastRequests
from policies.least_tokens import LeastTokens

A, B = np.uint64(mix(1001)), np.uint64(mix(1002))
"""Workers, by the hash of their name."""
BLOCK = 100.0


def beginning(*blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """A prompt's checkpoints: one a block, each hash of all blocks up to there."""
    hashes, tokens, found = np.zeros(MOST_CHECKPOINTS, np.uint64), np.zeros(MOST_CHECKPOINTS), 0
    for i, block in enumerate(blocks):
        found = mix(found ^ block)
        hashes[i], tokens[i] = found, BLOCK * (i + 1)
    return hashes, tokens


def take(p: Prefixes, r: int, name: np.uint64, *blocks: int, at_s: float = 1.0) -> float:
    matched = match(p, r, name, *blocks)
    return prefixes.take_prompt(p, 0, r, 0, name, BLOCK * len(blocks), matched, *beginning(*blocks), 1.0, at_s)


def match(p: Prefixes, r: int, name: np.uint64, *blocks: int) -> float:
    return prefixes.matched(p, 0, r, 0, name, *beginning(*blocks))


def test_checkpoints_are_each_of_the_first_blocks_then_four_an_octave() -> None:
    ends = [0]
    while len(ends) <= MOST_CHECKPOINTS:
        ends.append(next_checkpoint(ends[-1]))
    assert ends[1:14] == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20]
    assert ends[MOST_CHECKPOINTS] > 100_000
    assert all(after <= 1.25 * before for before, after in pairwise(ends[4:]))


def test_a_beginning_is_matched_where_it_went_and_nowhere_else() -> None:
    p = allocate(Prefixes, 2, 1)
    assert take(p, 0, A, 1, 2, 3) == 300
    assert match(p, 0, A, 1, 2, 3) == 300
    assert match(p, 0, A, 1, 2, 9) == 200
    assert match(p, 0, A, 9, 2, 3) == 0
    assert match(p, 1, B, 1, 2, 3) == 0
    assert take(p, 0, A, 1, 2, 9) == 100, "what is matched is not computed again"
    assert take(p, 0, A, 1, 2, 9) == 1, "one token is computed in any case"
    assert p.waiting_tokens.tolist() == [401, 0]


def test_as_many_new_tokens_as_memory_holds_beside_it_drive_a_beginning_out() -> None:
    p = allocate(Prefixes, 1, 1)
    prefixes.take_memory(p, 0, 0, 500.0, 0.0)
    take(p, 0, A, 1, 2)
    take(p, 0, A, 11, 12, 13)
    assert match(p, 0, A, 1, 2) == 200
    take(p, 0, A, 21)
    assert match(p, 0, A, 1, 2) == 100, "the end goes first"
    take(p, 0, A, 1)
    take(p, 0, A, 31, 32)
    assert match(p, 0, A, 1) == 100, "what is used again stays"
    assert match(p, 0, A, 11, 12, 13) == 100
    assert prefixes.cached_now(p, (0, 0)) == 500


@pytest.mark.parametrize("room", [20, 60, 120])
@pytest.mark.parametrize("exponent", [0.0, 1.0])
def test_what_is_asked_for_again_and_again_takes_room_once(room: int, exponent: float) -> None:
    """Beside a true cache that gives up what was not used for longest: 150 texts, some more wanted than others."""
    p, dice = allocate(Prefixes, 1, 1), np.random.default_rng(1)
    prefixes.take_memory(p, 0, 0, 3 * BLOCK * room, 0.0)
    popular = np.arange(1, 151.0) ** -exponent
    cache: OrderedDict[int, None] = OrderedDict()
    found = []
    for text in dice.choice(150, 4000, p=popular / popular.sum()).tolist():
        prompt = 3 * text + 1, 3 * text + 2, 3 * text + 3
        found.append((match(p, 0, A, *prompt) == 3 * BLOCK, text in cache))
        take(p, 0, A, *prompt)
        cache[text] = None
        cache.move_to_end(text)
        while len(cache) > room:
            cache.popitem(last=False)
    taken, true = np.array(found[1000:]).T
    assert np.mean(taken & ~true) < 0.03
    assert np.mean(~taken & true) < 0.03
    assert 0.1 < true.mean() < 0.97


def test_a_worker_that_starts_anew_has_nothing() -> None:
    p = allocate(Prefixes, 1, 1)
    take(p, 0, A, 1, 2)
    prefixes.lose_prefixes(p, 0, 2.0)
    assert match(p, 0, A, 1, 2) == 0
    take(p, 0, A, 7, 8, 9, at_s=3.0)
    assert match(p, 0, A, 1, 2) == 0, "nor when it has computed as much as before"
    assert match(p, 0, A, 7, 8) == 200


def test_any_number_of_beginnings_takes_the_same_room_and_the_latest_are_kept() -> None:
    p = allocate(Prefixes, 1, 1)
    room = PREFIX_PLACES * PREFIX_WAYS
    for number in range(room):
        take(p, 0, A, number, at_s=float(number))
    latest = [match(p, 0, A, number) for number in range(room - room // 8, room)]
    assert np.count_nonzero(latest) > 0.99 * len(latest)
    assert np.count_nonzero(p.key) <= room


def router(workers: int = 2, memory_tokens: int = 10_000) -> Router:
    found = Router(LeastTokens())
    for number in range(workers):
        found.observe(WorkerAdded(f"w{number}"), 0.0)
        found.observe(report(f"w{number}", 1, memory_tokens), 0.0)
    found.tick(0.0)
    return found


def report(worker: str, number: int, memory_tokens: int, incarnation: int = 1) -> Report:
    model = ModelReport("llm", "1", ready=True, memory_tokens=memory_tokens, held_tokens=70)
    return Report(worker, incarnation, number, ready=True, models=(model,))


def prompt(*blocks: int) -> Request:
    hashes, tokens = beginning(*blocks)
    known = tuple((int(hashes[i]), float(tokens[i])) for i in range(len(blocks)))
    return Request("llm", prompt_tokens=BLOCK * len(blocks), prefix=known)


def columns(found: Router, request: Request, at_s: float = 0.5) -> dict[str, list[float]]:
    view = found.view(request, at_s)
    names = ("matched_tokens", "waiting_tokens", "cached_tokens", "held_tokens", "memory_tokens")
    return {name: getattr(view, name).tolist() for name in names}


def test_a_router_counts_a_prompt_until_its_first_token_and_remembers_it_after() -> None:
    found = router()
    sent = found.route(prompt(1, 2, 3), 0.5)
    picked = found.fleet.index[sent.worker]
    seen = columns(found, prompt(1, 2, 4))
    assert [seen[name][picked] for name in seen] == [200, 300, 300, 70, 10_000]
    assert [seen[name][1 - picked] for name in seen] == [0, 0, 0, 70, 10_000]
    found.observe(FirstToken(sent.number), 0.6)
    found.observe(FirstToken(sent.number), 0.6)
    assert columns(found, prompt(1, 2, 4))["waiting_tokens"] == [0, 0]
    found.observe(Finished(sent.number, sent.worker, 1.0, True), 1.5)
    assert columns(found, prompt(1, 2, 4))["matched_tokens"][picked] == 200
    assert found.route(prompt(1, 2, 4), 0.7).worker == sent.worker


@pytest.mark.parametrize("how", ["finished", "failed", "withdrawn", "expired"])
def test_a_prompt_without_a_first_token_stops_counting_at_its_end(how: str) -> None:
    found = router(1)
    sent = found.route(prompt(1, 2, 3), 0.5)
    if how == "withdrawn":
        found.observe(Withdrawn(sent.number), 1.0)
    elif how == "expired":
        found.tick(1e6)
    else:
        found.observe(Finished(sent.number, "w0", 1.0, how == "finished"), 1.0)
    found.observe(FirstToken(sent.number), 1.0)
    assert found.fleet.prefixes.waiting_tokens.tolist() == [0.0]


def test_who_comes_under_a_name_that_left_has_nothing_of_it() -> None:
    found = router(1)
    found.route(prompt(1, 2, 3), 0.5)
    found.observe(WorkerRemoved("w0"), 1.0)
    found.observe(WorkerAdded("w0"), 1.0)
    found.observe(report("w0", 1, 10_000), 1.0)
    assert columns(found, prompt(1, 2, 3), 1.1)["matched_tokens"] == [0]
    for block in range(20, 30):
        found.route(prompt(block), 1.2)
    assert columns(found, prompt(1, 2, 3), 1.3)["matched_tokens"] == [0]


def test_a_restart_empties_a_cache() -> None:
    found = router(1)
    found.route(prompt(1, 2, 3), 0.5)
    found.observe(report("w0", 2, 10_000), 1.0)
    assert columns(found, prompt(1, 2, 3), 1.1)["matched_tokens"] == [300]
    found.observe(report("w0", 1, 10_000, incarnation=2), 1.2)
    seen = columns(found, prompt(1, 2, 3), 1.3)
    assert (seen["matched_tokens"], seen["cached_tokens"]) == ([0], [0])


def from_peers(number: int, *sent: Request, waiting_tokens: float = 0.0, incarnation: int = 1) -> Report:
    """A report of a worker with two balancers, of which the other sent it these prompts."""
    prompts = tuple(SentPrompt("llm", float(each.prompt_tokens), each.prefix) for each in sent)
    peers = {"peers_in_flight": (), "peers_waiting_tokens": waiting_tokens, "peers_prompts": prompts}
    return replace(report("w0", number, 1000, incarnation), balancers=2, **peers)


def test_what_others_sent_is_known_once_the_worker_tells_of_it() -> None:
    found = router(1, memory_tokens=1000)
    found.observe(from_peers(2, prompt(1, 2, 3), prompt(1, 2, 4), waiting_tokens=250.0), 0.1)
    seen = columns(found, prompt(1, 2, 5))
    assert [seen[name] for name in ("matched_tokens", "waiting_tokens", "cached_tokens")] == [[200], [250], [400]]
    # Own ones come on top, and nobody else is taken to have sent as much.
    found.route(prompt(1, 2, 5), 0.5)
    seen = columns(found, prompt(1, 2, 5))
    assert [seen[name] for name in ("matched_tokens", "waiting_tokens", "cached_tokens")] == [[300], [350], [500]]
    assert found.fleet.at_worker("w0").waiting_tokens == 100


def test_a_restart_empties_a_cache_of_what_others_sent_but_for_what_came_since() -> None:
    found = router(1, memory_tokens=1000)
    found.observe(from_peers(2, prompt(1, 2)), 0.1)
    found.observe(from_peers(1, prompt(3), incarnation=2), 0.2)
    assert columns(found, prompt(1, 2))["matched_tokens"] == [0]
    assert columns(found, prompt(3))["matched_tokens"] == [100]


def test_the_last_prompts_that_went_to_a_worker_are_told_once() -> None:
    found = router(1)
    for block in range(bounds.MAX_PROMPTS_TOLD + 2):
        found.route(prompt(block), 0.5)
    told = found.fleet.untold_prompts.take("w0")
    assert [each.prefix for each in told] == [prompt(block).prefix for block in range(2, bounds.MAX_PROMPTS_TOLD + 2)]
    assert found.fleet.untold_prompts.take("w0") == ()
    found.route(Request("llm"), 0.5)
    assert found.fleet.untold_prompts.take("w0") == ()


def test_several_balancers_are_taken_to_send_a_worker_as_much_each() -> None:
    """Where it does not tell."""
    found = router(1, memory_tokens=1000)
    model = ModelReport("llm", "1", ready=True, memory_tokens=1000)
    found.observe(Report("w0", 1, 2, ready=True, models=(model,), balancers=4), 0.1)
    found.route(prompt(1, 2), 0.5)
    assert columns(found, prompt(1, 2))["cached_tokens"] == [800]
    found.route(prompt(3), 0.5)
    assert columns(found, prompt(1, 2))["matched_tokens"] == [200]
    found.route(prompt(4, 5), 0.5)
    assert columns(found, prompt(1, 2))["matched_tokens"] == [0]


def test_requests_without_prompts_see_none_of_it() -> None:
    found = router()
    found.policy = LeastRequests()
    found.route(prompt(1, 2, 3), 0.5)
    seen = columns(found, Request("llm", key=5))
    assert seen["matched_tokens"] == [0, 0]
    sent = found.route(Request("llm"), 0.6)
    found.observe(FirstToken(sent.number), 0.7)
    assert sum(seen["waiting_tokens"]) == 300
    assert math.isclose(sum(columns(found, Request("llm"))["waiting_tokens"]), 300)
