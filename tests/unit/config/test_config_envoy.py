"""The section `envoy`: what Envoy's bootstrap is made from, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from balancer.balancer_tls import BalancerTls
from balancer.bootstrap.bootstrap import BootstrapOptions
from balancer.config import config
from balancer.config.frontend import bootstrap_options


def test_envoy_gets_its_section_and_what_others_say() -> None:
    parsed = config.from_mapping(
        {
            "envoy": {"balancers": ["balancer.svc:9002"], "triton_tls": {"ca_file": "j", "server_name": "k"}},
            "requests": {"tenant_header": "x-org"},
        }
    )
    assert bootstrap_options(parsed) == BootstrapOptions(
        envoy=parsed.envoy, balancers=("balancer.svc:9002",), tenant_header="x-org"
    )
    assert parsed.envoy.triton_tls is not None
    assert parsed.envoy.triton_tls.trust() == BalancerTls(Path("j"), "k")


VERSIONS, DEVICES = "the versions of this model", "the devices of this model"
CONFIDENT = {"models": ["a", "b"], "output": "P", "threshold": 0.5}


@pytest.mark.parametrize(
    ("sections", "picked", "forwarded", "of_all"),
    [
        ({"models": {"m": {"memory_bytes": 1}}}, {}, {}, ""),
        ({"models": {"m": {"versions": ["1"]}}}, {"m": VERSIONS}, {}, ""),
        ({"models": {"m": {"split": {"old": "1", "new": "2", "share": 0.1}}}}, {"m": VERSIONS}, {}, ""),
        ({"models": {"m": {"devices": ["T4"]}}}, {"m": DEVICES}, {}, ""),
        ({"models": {"m": {"proxy": {"once_s": 5}}}}, {}, {"m": "ids that are executed once"}, ""),
        ({"models": {"m": {"proxy": {"cache_ttl_s": 5}}}}, {}, {}, ""),
        ({"proxy": {"cascades": {"c": ["a"]}}}, {}, {"c": "a name that several models serve"}, ""),
        ({"proxy": {"confidence_cascades": {"c": CONFIDENT}}}, {}, {"c": "a name that several models serve"}, ""),
        ({"limits": {"max_pending_per_worker": 9}}, {}, {}, "limits"),
        ({"limits": {"sheddable_priority": 9, "sheddable_max_pending_per_worker": 3}}, {}, {}, "limits"),
        ({"limits": {"shed_late": True}}, {}, {}, "limits"),
        ({"proxy": {"tenants": {"rows_per_s": 9}}}, {}, {}, "limits of tenants"),
        ({"proxy": {"tenants": {"named": {"a": {"requests_per_s": 9}}}}}, {}, {}, "limits of tenants"),
    ],
)
def test_what_only_a_balancer_keeps(
    sections: dict[str, Any], picked: dict[str, str], forwarded: dict[str, str], of_all: str
) -> None:
    kept = bootstrap_options(config.from_mapping({"envoy": {"frontend": "proxy"}, **sections})).kept
    assert (dict(kept.picked), dict(kept.forwarded), kept.of_all) == (picked, forwarded, of_all)
