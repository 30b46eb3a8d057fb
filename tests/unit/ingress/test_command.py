"""What `balancer ingress` refuses, in words that name the remedy."""

import pytest
from click.testing import CliRunner

from balancer.cli.main import main

NATS = ("--broker", "nats://127.0.0.1:4222")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "BALANCER_BROKER"),
        (("--broker", "mqtt://127.0.0.1"), "must be one of nats, redis, rediss, kafka"),
        (("--broker", "127.0.0.1:4222"), "must be one of nats"),
        (("--broker", "amqp://me:secret@127.0.0.1"), "--broker amqp://127.0.0.1: its scheme"),
        ((*NATS, "--listener", "127.0.0.1:8080"), "give http://HOST:PORT"),
        ((*NATS, "--answers", "requests"), "must each name another topic"),
        ((*NATS, "--requests", "a.b"), "cannot name a stream of NATS: give letters"),
        ((*NATS, "--group", "a b"), "'a b' cannot name a stream"),
        (("--broker", "redis://127.0.0.1:none"), "is no address of a Redis"),
        (("--broker", "kafka://127.0.0.1:9092?no.such=thing"), "no.such"),
        ((*NATS, "--metrics", "127.0.0.1"), "--metrics 127.0.0.1: cannot listen there"),
    ],
)
def test_what_cannot_be_says_how_it_can(arguments: tuple[str, ...], words: str) -> None:
    found = CliRunner().invoke(main, ["ingress", *arguments])
    assert found.exit_code in (1, 2)
    assert words in " ".join(found.output.split())
