from pathlib import Path

import pytest
from click.testing import CliRunner

from balancer.cli.main import main

HERE = str(Path(__file__))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Missing option '--balancer'"),
        (("--balancer", "nonsense"), "--balancer: 'nonsense' is not host:port; write it like 10.0.0.5:9102"),
        (("--balancer", "a:1", "--listen", "nonsense"), "--listen: cannot listen on nonsense"),
        (("--balancer", "a:1", "--listen-tls-cert", HERE), "--listen-tls-key, --listen-tls-ca: give --listen-tls-cert"),
        (
            ("--balancer", "a:1", *(f"--listen-tls-{part}={HERE}" for part in ("cert", "key", "ca"))),
            "has no certificate in it; name a PEM file that has",
        ),
        (("--balancer", "a:1", "--tls-ca", HERE), "--tls-ca and --tls-name go together"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_remedy(arguments: tuple[str, ...], words: str) -> None:
    result = CliRunner().invoke(main, ["relay", *arguments])
    assert result.exit_code != 0
    assert words in " ".join(result.output.split())
