"""`balancer profile` against a real Triton."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from balancer.cli.main import main
from balancer.config.profile_file import load_profile
from balancer.stack.process import free_ports
from balancer.stack.tritonserver import TritonServer

# Measured on a T4 (triton/emulation/latency.csv); the emulation sleeps for as long, so never less.
BERT_DISTILLED_S = {1: 0.0023, 16: 0.0342}

Command = Callable[..., Result]


@pytest.fixture
def command(triton: TritonServer, tmp_path: Path) -> Command:
    """Runs the command on the server; writes to `tmp_path / "t4.yaml"`."""

    def run(*arguments: str, address: str = triton.grpc_endpoint) -> Result:
        few = ("--executions", "4", "--warm-up", "1")
        out = ("--device", "T4", "--out", str(tmp_path / "t4.yaml"))
        return CliRunner().invoke(main, ["profile", address, *out, *few, *arguments])

    return run


def test_a_profile_says_what_the_server_takes(command: Command, tmp_path: Path) -> None:
    result = command("--model", "emulated_bert_distilled", "--model", "string_upper", "--batch", "1,2")
    assert result.exit_code == 0, result.output
    assert "Balancer's line" in result.output
    profile = load_profile(tmp_path / "t4.yaml")
    assert (profile.device, profile.server, profile.concurrency) == ("T4", "worker-under-test 2.51.0", 1)
    bert, upper = profile.models
    assert (bert.model, bert.version, bert.max_batch_rows, bert.instances) == ("emulated_bert_distilled", "1", 16, 1)
    assert [(point.rows, point.executions) for point in bert.points] == [(1, 4), (2, 4)]
    assert [point.rows for point in upper.points] == [1, 2]


def test_times_are_those_of_the_server_and_sizes_go_up_to_its_largest_batch(command: Command, tmp_path: Path) -> None:
    assert command("--model", "emulated_bert_distilled").exit_code == 0
    (bert,) = load_profile(tmp_path / "t4.yaml").models
    times_s = {point.rows: point.mean_s for point in bert.points}
    assert list(times_s) == [1, 2, 4, 8, 16]
    for rows, least_s in BERT_DISTILLED_S.items():
        assert least_s * 0.99 <= times_s[rows]


def test_a_model_that_does_not_batch_has_one_size(command: Command, tmp_path: Path) -> None:
    result = command("--model", "identity")
    assert result.exit_code == 0, result.output
    (identity,) = load_profile(tmp_path / "t4.yaml").models
    assert (identity.max_batch_rows, [point.rows for point in identity.points]) == (1, [1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--model", "nobody"],
            "model nobody: Request for unknown model: 'nobody' is not found; ready here: decoupled",
        ),
        (["--model", "identity", "--batch", "1,2"], "does not batch (max_batch_size 0), and --batch asks for 2"),
        (["--model", "digits", "--batch", "64"], "takes at most 32 rows, and --batch asks for 64: give at most 32"),
        (["--model", "sequence_sum"], "model sequence_sum serves sequences, whose requests cannot stand alone"),
        (["--model", "decoupled_count"], "model decoupled_count is decoupled"),
        (["--model", "digits", "--batch", "1,x"], "'1,x' is no list of batch sizes; write whole numbers from 1 on"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_the_remedy(
    command: Command, tmp_path: Path, arguments: list[str], message: str
) -> None:
    result = command(*arguments)
    assert result.exit_code != 0
    assert message in " ".join(result.output.split()), result.output
    assert not (tmp_path / "t4.yaml").exists()


def test_a_server_that_is_not_there(command: Command) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    result = command("--model", "digits", address=address)
    assert result.exit_code == 1
    assert f"{address} does not answer: " in result.output
    assert "give host and gRPC port of a Triton that is running" in result.output
