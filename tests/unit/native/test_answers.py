"""The module reads what an answer says of its tokens as the balancer does, with sanitizers."""

import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.c_programs import SANITIZED, compiled

from balancer.extproc.prompts import AnswerReader, Usage
from balancer.native.build import SOURCES

Read = Callable[[bytes, int, int], Usage]
EVENT = b'data: {"choices":[{"delta":{"content":"say \\"prompt_tokens\\": 5, data"}}]}\n\n'
USAGE = b'{"completion_tokens":3,"prompt_tokens" : 32,"prompt_tokens_details":{"cached_tokens":\n30}}'
PIECES = (
    *(EVENT, b"data: [DONE]\n\n", b'data: {"usage":' + USAGE + b"}\n\n", b"dadata:", b"data", b"data:data:"),
    *(b'"prompt_tokens": 7', b'"cached_tokens": 9', b'"completion_tokens":12345678901', b'"completion_tokens": -3'),
    *(b'"prompt_tokens": 999999999,', b'"prompt_tokens":', b"\0\xff" * 300, b"x" * 9000, b""),
)


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    sources = Path(__file__).with_name("answers.c"), *(SOURCES / f"{name}.c" for name in ("answer", "text", "hash"))
    made = compiled(tmp_path_factory.mktemp("c") / "answers", *SANITIZED, *sources)

    def by_program(answer: bytes, how: int, piece: int) -> Usage:
        command = [made, str(int(how)), str(piece)]
        run = subprocess.run(command, input=answer, capture_output=True, check=False)
        assert run.returncode == 0, run.stderr.decode()
        return Usage(*map(float, run.stdout.split()))

    return by_program


@pytest.mark.parametrize("seed", range(40))
def test_an_answer_says_the_same_in_whatever_pieces_it_comes(read: Read, seed: int) -> None:
    rng = random.Random(seed)
    answer = b"".join(rng.choices(PIECES, k=rng.randint(0, 12)))
    reader = AnswerReader()
    reader.feed(answer)
    expected = reader.usage()
    for piece in (1, 5, rng.randint(6, 9000), 100_000):
        assert read(answer, True, piece) == expected
    without_events = read(answer, False, 1000)
    assert without_events[:2] == expected[:2]


@pytest.mark.parametrize("seed", range(10))
def test_messages_of_grpc_are_tokens_whatever_is_in_them(read: Read, seed: int) -> None:
    rng = random.Random(seed)
    sizes = rng.choices([0, 1, 4, 300, 70_000], k=rng.randint(0, 9))
    answer = b"".join(b"\0" + size.to_bytes(4, "big") + (USAGE * 2000)[:size] for size in sizes)
    for piece in (1, 3, 8192, 100_000):
        assert read(answer, 2, piece) == Usage(0, 0, len(sizes))


def test_a_long_stream_is_counted_to_its_end(read: Read) -> None:
    answer = EVENT * 3000 + b'data: {"usage":' + USAGE + b"}\n\ndata: [DONE]\n\n"
    assert read(answer, True, 777) == Usage(32, 30, 3)
    assert read(EVENT * 3000, True, 777).output == 2 * 3000 - 3000
