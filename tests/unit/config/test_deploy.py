"""What deploy/ offers fits together."""

import os
import re
import subprocess
from pathlib import Path

from cryptography import x509

from balancer.config.config import load
from balancer.server.preflight import check_files
from balancer.server.security.listeners import warnings

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"


def test_the_sample_is_good_and_closed_to_strangers() -> None:
    assert warnings(load(DEPLOY / "balancer.yaml")) == []


def test_certificates_fit_the_config_that_is_shown_with_them(tmp_path: Path) -> None:
    subprocess.run([DEPLOY / "certificates.sh", "out/tls", "triton-0"], cwd=tmp_path, check=True, env=dict(os.environ))
    (shown,) = re.findall(r"```yaml\n(tls:.*?)```", (DEPLOY / "README.md").read_text(), re.DOTALL)
    config = tmp_path / "balancer.yaml"
    config.write_text(shown)
    check_files(load(config), config)
    agent = x509.load_pem_x509_certificate((tmp_path / "out/tls/agent-triton-0.crt").read_bytes())
    names = agent.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["spiffe://balancer/agent/triton-0"]
