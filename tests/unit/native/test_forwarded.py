"""The module's list of models that the balancer forwards, with sanitizers."""

import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.c_programs import SANITIZED, compiled

from balancer.bootstrap.native import list_of
from balancer.extproc.names import MOST_FORWARDED
from balancer.native.build import SOURCES

Ask = Callable[..., str]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Reads a list and says which of the models are in it."""
    sources = Path(__file__).with_name("forwarded.c"), SOURCES / "forwarded.c"
    made = compiled(tmp_path_factory.mktemp("c") / "forwarded", *SANITIZED, *sources)

    def ask_program(of: str, *models: str) -> str:
        run = subprocess.run([made, of, *models], capture_output=True, check=True)
        return run.stdout.decode().strip()

    return ask_program


def test_what_is_named_is_in_it_and_nothing_else(ask: Ask) -> None:
    rng = random.Random(1)
    names = {"".join(rng.choices('ab:1\n"é𝄞', k=rng.randint(1, 9))) for _ in range(4 * MOST_FORWARDED)}
    named, rest = sorted(names)[:MOST_FORWARDED], sorted(names)[MOST_FORWARDED:]
    assert len(named) == MOST_FORWARDED
    assert rest
    rng.shuffle(named)
    assert ask(list_of(named), *named, *rest) == len(named) * "1" + len(rest) * "0"


def test_one_without_names_has_none(ask: Ask) -> None:
    assert ask("", "", "m") == "00"


@pytest.mark.parametrize(
    "wrong",
    ["m", ":", "1:", "2:m", "0:", "1:m0:", "1:mx", "1:m1", "-1:m", f"{2**64 + 1}:m", "99999999999999999999999:m"],
)
def test_what_is_no_list_is_refused(ask: Ask, wrong: str) -> None:
    assert ask(wrong, "m") == "no list"


def test_one_with_too_many_is_refused(ask: Ask) -> None:
    assert ask(list_of([f"m{number}" for number in range(MOST_FORWARDED + 1)]), "m1") == "no list"
