"""Prompts on the wire: who is told of which, how often, and what is refused."""

import pytest

from balancer import bounds
from balancer.bounds import OutOfBoundsError
from balancer.kernel.estimators.prefixes import MOST_CHECKPOINTS
from balancer.reports import report_pb2
from balancer.reports.prompts import Listener, PromptLog, decode_prompts, encode_prompts
from balancer.scheduler.events import SentPrompt


def prompts(*tokens: int) -> list[report_pb2.SentPrompt]:
    return [report_pb2.SentPrompt(model="m", tokens=each) for each in tokens]


def told(listener: Listener) -> list[float]:
    return [prompt.tokens for prompt in listener.next()]


def test_a_balancer_is_told_once_of_what_others_sent() -> None:
    log = PromptLog()
    a, b = Listener(log, "a"), Listener(log, "b")
    log.add("a", prompts(1, 2))
    log.add("b", prompts(3))
    assert told(a) == [3]
    assert told(b) == [1, 2]
    log.add("a", prompts(4))
    assert told(a) == []
    assert told(b) == [4]
    assert told(b) == []


def test_one_that_comes_back_is_told_of_its_own_from_before_as_well() -> None:
    log = PromptLog()
    log.add("a", prompts(1))
    log.add("b", prompts(2))
    again = Listener(log, "a")
    log.add("a", prompts(3))
    assert told(again) == [1, 2]


def test_a_message_tells_of_so_many_and_the_next_goes_on() -> None:
    log, many = PromptLog(), bounds.MAX_PROMPTS_TOLD
    late = Listener(log, "a")
    log.add("b", prompts(*range(1, many + 3)))
    assert told(late) == list(range(1, many + 1))
    assert told(late) == [many + 1, many + 2]


def test_the_log_keeps_the_last_ones_and_loses_all_with_the_worker() -> None:
    log = PromptLog()
    log.belongs_to(1)
    log.add("a", prompts(*range(1, 10_001)))
    late, heard = Listener(log, "b"), []
    while some := told(late):
        heard += some
    assert heard == list(range(10_001 - len(heard), 10_001))
    assert 1000 < len(heard) < 10_000
    log.belongs_to(1)
    assert told(Listener(log, "c"))
    log.belongs_to(2)
    assert told(Listener(log, "c")) == []
    log.add("a", prompts(7))
    assert told(late) == [7]


def test_hashes_beyond_those_that_anybody_keeps_are_not_sent() -> None:
    prefix = tuple((i, float(i)) for i in range(1, MOST_CHECKPOINTS + 9))
    (decoded,) = decode_prompts(list(encode_prompts([SentPrompt("m", 1000.0, prefix)])))
    assert decoded == SentPrompt("m", 1000.0, prefix[:MOST_CHECKPOINTS])


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"tokens": float("nan")}, "prompts.tokens: nan is refused"),
        ({"tokens": 0.0}, "prompts.tokens: 0 is refused"),
        ({"tokens": 1e8}, "prompts.tokens: 100000000 is refused; it is a number from 1 to 10000000"),
        ({"model": "m" * 257}, r"prompts.model: .* has 256 bytes at most"),
        ({"prefix": range(65), "prefix_tokens": range(1, 66)}, "prompts.prefix: '65 entries' is refused"),
        ({"prefix": [1, 2], "prefix_tokens": [1]}, "prompts.prefix_tokens: '1 entries' is refused; it has as many"),
        ({"prefix": [1, 2], "prefix_tokens": [2, 2]}, "prompts.prefix_tokens: 2 is refused; it is a number from 3"),
        ({"prefix": [1], "prefix_tokens": [101]}, "prompts.prefix_tokens: 101 is refused; .* from 1 to 100"),
    ],
)
def test_what_is_out_of_bounds_is_refused(fields: dict[str, object], why: str) -> None:
    with pytest.raises(OutOfBoundsError, match=why):
        decode_prompts([report_pb2.SentPrompt(**{"model": "m", "tokens": 100.0, **fields})])


def test_more_prompts_than_a_message_may_tell_of_are_refused() -> None:
    with pytest.raises(OutOfBoundsError, match="prompts: '65 entries' is refused; it has 64 at most"):
        decode_prompts(prompts(*[1] * (bounds.MAX_PROMPTS_TOLD + 1)))
