"""The section `envoy`: what Envoy's bootstrap is made from, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from balancer.config import config
from balancer.config.config import ConfigError
from balancer.gateway.holding import longest_answer_s


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "envoy: {local_rate_limit: {per: tenant, requests: 1}}\n",
            'envoy.local_rate_limit.per: "tenant" is not allowed: needs envoy.jwt, envoy.api_keys or '
            "envoy.tls.client_ca_file; set one of them, or count per address",
        ),
        (
            "envoy: {rate_limit: {per: principal, service: 'limits:8081'}}\n",
            'envoy.rate_limit.per: "principal" is not allowed: needs envoy.jwt',
        ),
        (
            "envoy: {rate_limit: {per: address, service: 'limits'}}\n",
            'envoy.rate_limit.service: "limits" is not allowed',
        ),
        (
            "envoy: {jwt: {issuer: i, audiences: [a], jwks_file: f}, api_keys: {file: f}}\n",
            "is not allowed: cannot stand beside envoy.jwt, which names principals too; keep one of them",
        ),
        ("envoy: {jwt: {issuer: i, audiences: [a]}}\n", "give exactly one of jwks_file and jwks_url"),
        ("envoy: {jwt: {issuer: i, audiences: [], jwks_file: f}}\n", "envoy.jwt.audiences: [] is not allowed"),
        ("envoy: {jwt: {issuer: i, audiences: [a], jwks_url: 'file:///etc'}}\n", "must be a URL of http or https"),
        ("envoy: {triton_tls: {ca_file: a, server_name: n, cert_file: c}}\n", "cert_file and key_file go together"),
    ],
)
def test_refused_with_place_value_and_remedy(content: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config.parse(content, "balancer.yaml")
    assert message in str(refused.value)


def test_envoy_gets_its_section() -> None:
    options = config.parse(
        """
        tls: {envoy: {cert_file: a, key_file: b, client_ca_file: c}}
        envoy:
          listen: "[::]:1"
          admin: 127.0.0.1:2
          message_timeout_s: 0.5
          health_timeout_s: 0.75
          access_log_flush_s: 0.25
          request_buffer_limit_bytes: 1MiB
          access_log: /dev/stdout
          node_id: west
          balancers: ["balancer.svc:9002"]
          request_timeout_s: 20
          max_connections: 50
          max_heap_bytes: 1GiB
          traces: {collector: "collector.svc:4317", share: 0.25, service: edge, follow_clients: false}
          tls: {cert_file: c, key_file: d, client_ca_file: e}
          balancer_tls: {ca_file: f, server_name: g, cert_file: h, key_file: i}
          triton_tls: {ca_file: j, server_name: k, rest: false}
          jwt: {issuer: l, audiences: [m], jwks_file: /n, tenant_claim: o}
          open_health: true
          local_rate_limit: {per: tenant, requests: 5, burst: 9}
          rate_limit: {service: "limits:8081", per: address, when_away: refuse}
          audit_log: {file: /p, share: 0.5}
        requests: {tenant_header: x-org}
        holding: {models: {q: {}}, max_s: 2}
        """,
        "f",
    ).bootstrap_options()
    told: dict[str, Any] = dataclasses.asdict(options)
    assert told == {
        "listener_address": "::",
        "listener_port": 1,
        "admin_address": "127.0.0.1",
        "admin_port": 2,
        "balancers": ("balancer.svc:9002",),
        "node_id": "west",
        "message_timeout_s": 0.5,
        "longest_answer_s": longest_answer_s(2.0),
        "health_timeout_s": 0.75,
        "flush_interval_s": 0.25,
        "request_buffer_limit_bytes": 2**20,
        "access_log": "/dev/stdout",
        "request_timeout_s": 20,
        "max_connections": 50,
        "max_heap_bytes": 2**30,
        "traces": {"collector": "collector.svc:4317", "share": 0.25, "service": "edge", "follow_clients": False},
        "listener_tls": {"certificate": Path("c"), "private_key": Path("d"), "client_ca": Path("e")},
        "balancer_tls": {
            "ca": Path("f"),
            "server_name": "g",
            "certificate": Path("h"),
            "private_key": Path("i"),
        },
        "native": None,
        "fleet": None,
        "proxy": False,
        "forwarded": (),
        "triton_tls": {
            "trust": {"ca": Path("j"), "server_name": "k", "certificate": None, "private_key": None},
            "rest": False,
        },
        "audit_log": {"file": "/p", "share": 0.5},
        "access": {
            "jwt": {
                "issuer": "l",
                "audiences": ("m",),
                "jwks_file": Path("/n"),
                "jwks_url": "",
                "jwks_ca": Path("/etc/ssl/certs/ca-certificates.crt"),
                "principal_claim": "sub",
                "tenant_claim": "o",
            },
            "api_keys": None,
            "client_certificates": True,
            "health_is_open": True,
            "local_limit": {"per": "tenant", "requests": 5, "every_s": 1.0, "burst": 9, "most_counted": 10_000},
            "global_limit": {
                "per": "address",
                "service": "limits:8081",
                "domain": "balancer",
                "timeout_s": 0.05,
                "refuse_when_away": True,
                "tls": None,
            },
            "tenant_header": "x-org",
            "named": True,
        },
    }
