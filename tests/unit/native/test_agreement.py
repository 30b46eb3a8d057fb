"""What the module and Python must agree on is declared once; whoever was built from another declaration is not used."""

import subprocess
from pathlib import Path

import pytest
from support.c_programs import compiled

from balancer.extproc.responses import CODES, verdict
from balancer.kernel.compiled.library import Library
from balancer.native import envoy_module as module
from balancer.native.build import SOURCES
from balancer.native.envoy_module import Module, ModuleError
from balancer.native.layouts import VOIDS
from balancer.scheduler import errors
from balancer.scheduler.errors import RefusalText
from balancer.server.logs import DecisionLines


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """By C."""
    hashes = (SOURCES / f"{name}.c" for name in ("hash", "text"))
    made = compiled(tmp_path_factory.mktemp("c") / "agree", Path(__file__).with_name("agree.c"), *hashes)
    done = subprocess.run([made], capture_output=True, text=True, check=True)
    return [line.split(" ", 3) for line in done.stdout.splitlines()]


def test_statuses_say_the_same(printed: list[list[str]]) -> None:
    verdicts = {
        (what, int(status)): (ok == "1", VOIDS[int(void)])
        for what, status, ok, void in printed
        if what in {"grpc", "http"}
    }
    client = (False, "client")
    for status in range(1, 600):
        assert verdicts.get(("http", status), client) == verdict(-1, status)
    for status in range(20):
        assert verdicts.get(("grpc", status), client) == verdict(status, 200)


def test_refusals_have_the_same_words_and_codes(printed: list[list[str]]) -> None:
    def line(words: RefusalText, **values: object) -> list[str]:
        return ["say", *map(str, CODES[words.error]), str(words.of(**values))]

    assert [each for each in printed if each[0] == "say"] == [
        line(errors.UNKNOWN, model="m"),
        line(errors.UNKNOWN_VERSION, model="m", version="v"),
        line(errors.NOBODY, model="m"),
        line(errors.FULL, model="m", limit=2.5),
        line(errors.LATE, model="m", best_ms=12.5, deadline_ms=1234.5),
        line(errors.SHED, policy="v", model="m"),
    ]


def test_a_module_of_another_declaration_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DIGEST", "another")
    with pytest.raises(ModuleError, match="built from other sources"):
        Module(Library())


@pytest.mark.parametrize("share", [0.0, 1e-9, 0.3, 0.999, 1.0])
def test_lines_are_logged_of_the_same_numbers(printed: list[list[str]], share: float) -> None:
    draws = [float.fromhex(draw) for what, _, draw, _ in printed if what == "draw"]
    lines = DecisionLines(share)
    assert [draw < share for draw in draws] == [lines.wants(number) for number in range(2000)]
