"""How long models that generate take: lines that a router learns from first tokens and ends."""

import pytest
from support.estimators import allocate

from balancer.kernel.estimators import generation
from balancer.kernel.estimators.generation import DEFAULT_OUTPUT_TOKENS, Lengths
from balancer.scheduler.events import Finished, FirstToken, ModelReport, Report, WorkerAdded
from balancer.scheduler.router import Router
from policies.base import Request
from policies.round_robin import RoundRobin

FIXED_S, PER_TOKEN_S = 0.02, 1e-4
EACH_S = 0.03


def router(*devices: str) -> Router:
    found = Router(RoundRobin())
    for number, device in enumerate(devices):
        name, model = f"w{number}", ModelReport("llm", "1", ready=True, memory_tokens=10**6)
        found.observe(WorkerAdded(name, device=device), 0.0)
        found.observe(Report(name, 1, 1, ready=True, models=(model,), device=device), 0.0)
    found.tick(0.0)
    return found


def column(found: Router, name: str, tokens: float, at_s: float) -> list[float]:
    values: list[float] = getattr(found.view(Request("llm", prompt_tokens=tokens), at_s), name).tolist()
    return values


def serve(found: Router, tokens: float, output: int, at_s: float, slower: float = 1.0) -> float:
    """One request alone, of a device with these times; returns when it ended."""
    sent = found.route(Request("llm", prompt_tokens=tokens), at_s)
    first_s = at_s + (FIXED_S + PER_TOKEN_S * tokens) * slower
    found.observe(FirstToken(sent.number), first_s)
    end_s = first_s + EACH_S * slower * (output - 1)
    found.observe(Finished(sent.number, sent.worker, end_s - at_s, True, output_tokens=output), end_s)
    return end_s


def served(*devices: str, requests: int = 40) -> tuple[Router, float]:
    found, now_s = router(*devices), 1.0
    for number in range(requests):
        now_s = serve(found, 100.0 + 300.0 * (number % 4), 50 + 100 * (number % 2), now_s)
        found.tick(now_s)
    for number in range(len(devices)):
        model = ModelReport("llm", "1", ready=True, memory_tokens=10**6)
        found.observe(Report(f"w{number}", 1, 2, ready=True, models=(model,), device=devices[number]), now_s)
    return found, now_s


def test_the_time_to_the_first_token_is_a_line_of_the_tokens_to_compute() -> None:
    found, now_s = served("A100")
    for tokens in (100.0, 1000.0):
        expected_s = FIXED_S + PER_TOKEN_S * tokens
        assert column(found, "first_token_s", tokens, now_s)[0] == pytest.approx(expected_s, rel=0.05)
        assert column(found, "prompt_s", tokens, now_s)[0] == pytest.approx(PER_TOKEN_S * tokens, rel=0.05)


def test_what_waits_before_it_delays_the_first_token() -> None:
    found, now_s = served("A100")
    found.route(Request("llm", prompt_tokens=2000.0), now_s)
    expected_s = FIXED_S + PER_TOKEN_S * 2500
    assert column(found, "first_token_s", 500.0, now_s)[0] == pytest.approx(expected_s, rel=0.05)


def test_an_answer_is_taken_to_be_as_long_as_the_mean_and_its_tokens_as_they_were() -> None:
    found, now_s = served("A100")
    first_s, whole_s = (column(found, name, 400.0, now_s)[0] for name in ("first_token_s", "completion_s"))
    lengths = found.fleet.lengths.output_tokens[0, found.fleet.models["llm"]]
    assert lengths == pytest.approx(100, abs=10)
    assert whole_s - first_s == pytest.approx(lengths * EACH_S, rel=0.1)


def test_a_request_may_bound_its_answer() -> None:
    found, now_s = served("A100")

    def seconds(max_tokens: float) -> tuple[float, float]:
        view = found.view(Request("llm", prompt_tokens=400.0, max_tokens=max_tokens), now_s)
        return view.completion_s[0] - view.first_token_s[0], view.slowdown_s[0] - view.prompt_s[0]

    of_any, slows_by = seconds(0.0)
    assert seconds(10.0) == (pytest.approx(10 * EACH_S, rel=0.1), pytest.approx(slows_by / 10, rel=0.2))
    assert seconds(1000.0) == (of_any, slows_by)


def test_who_has_served_nothing_is_taken_for_one_of_its_kind() -> None:
    found, now_s = served("A100")
    model = ModelReport("llm", "1", ready=True)
    found.observe(WorkerAdded("w1", device="A100"), now_s)
    found.observe(Report("w1", 1, 1, ready=True, models=(model,), device="A100"), now_s)
    found.tick(now_s + 1.0)
    known_s, new_s = column(found, "first_token_s", 700.0, now_s)
    assert new_s == pytest.approx(known_s, rel=0.1)


def test_unequal_devices_are_told_apart() -> None:
    found, now_s = router("A100", "A40"), 1.0
    for number in range(60):
        now_s = serve(found, 100.0 + 300.0 * (number % 5), 20, now_s, slower=4.0 if number % 2 else 1.0)
    for number, device in enumerate(("A100", "A40")):
        model = ModelReport("llm", "1", ready=True)
        found.observe(Report(f"w{number}", 1, 2, ready=True, models=(model,), device=device), now_s)
    for name in ("first_token_s", "prompt_s", "completion_s"):
        times = sorted(column(found, name, 1000.0, now_s))
        assert times[1] == pytest.approx(4 * times[0], rel=0.2), name


def test_requests_beside_it_slow_its_tokens_and_it_slows_theirs() -> None:
    found, now_s = router("A100"), 1.0
    for number in range(40):
        beside = 1 + number % 8
        sent = [found.route(Request("llm", prompt_tokens=100.0), now_s) for _ in range(beside)]
        for each in sent:
            found.observe(FirstToken(each.number), now_s + 0.1)
        for i, each in enumerate(sent):
            end_s = now_s + 0.1 + 9 * (0.01 + 0.002 * 0.5 * (i + 1 + beside - i))
            found.observe(Finished(each.number, "w0", 0.2, True, output_tokens=10), end_s)
        now_s += 0.5
        found.tick(now_s)
    model = ModelReport("llm", "1", ready=True)
    found.observe(Report("w0", 1, 2, ready=True, models=(model,), device="A100"), now_s)
    alone_s = column(found, "completion_s", 100.0, now_s)[0] - column(found, "first_token_s", 100.0, now_s)[0]
    slowed_s = column(found, "slowdown_s", 100.0, now_s)[0] - column(found, "prompt_s", 100.0, now_s)[0]
    assert slowed_s > 0
    for _ in range(5):
        found.route(Request("llm", prompt_tokens=100.0), now_s)
    beside_s = column(found, "completion_s", 100.0, now_s)[0] - column(found, "first_token_s", 100.0, now_s)[0]
    assert beside_s == pytest.approx(alone_s + 5 * slowed_s)


@pytest.mark.parametrize("how", ["failed", "elsewhere", "of unknown length"])
def test_what_says_nothing_of_the_worker_teaches_nothing(how: str) -> None:
    found = router("A100", "A100")
    sent = found.route(Request("llm", prompt_tokens=100.0), 1.0)
    served_by = sent.worker if how != "elsewhere" else "w1" if sent.worker == "w0" else "w0"
    tokens = 0 if how == "of unknown length" else 500
    found.observe(Finished(sent.number, served_by, 5.0, how != "failed", output_tokens=tokens), 6.0)
    assert not found.fleet.lengths.ended.any()
    assert not found.fleet.decode.weight.any()


def test_a_request_without_a_prompt_takes_what_its_batch_does() -> None:
    found, now_s = served("A100")
    view = found.view(Request("llm"), now_s)
    assert [view.first_token_s[0], view.prompt_s[0], view.slowdown_s[0]] == [0, 0, 0]
    assert view.completion_s[0] < 1.0


def test_lengths_fade_and_stand_for_the_whole_fleet() -> None:
    lengths = allocate(Lengths, 2, 1)
    generation.fade_lengths(lengths, 0, 2, 0.5)
    assert lengths.output_tokens[:, 0].tolist() == [DEFAULT_OUTPUT_TOKENS] * 2
    generation.learn_length(lengths, 0, 0, 100.0)
    generation.learn_length(lengths, 1, 0, 300.0)
    generation.fade_lengths(lengths, 0, 2, 0.5)
    assert lengths.output_tokens[:, 0].tolist() == [200, 200]
    generation.learn_length(lengths, 1, 0, 500.0)
    generation.fade_lengths(lengths, 0, 2, 0.0)
    assert lengths.output_tokens[:, 0].tolist() == [350, 350]
