"""Configs that are refused: with place, field, value and remedy."""

import pytest

from balancer.config import config
from balancer.config.config import ConfigError


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "balancer.yaml: the file is empty; write {} where the defaults are really meant"),
        ("# only a comment\n", "balancer.yaml: the file is empty"),
        ("---\n", "balancer.yaml: the file is empty"),
        ("- 1\n", "balancer.yaml:1: the top is list, but must be a mapping of sections"),
        (b"seed: 1\nlog: {level: \xff}\n", "balancer.yaml:2: byte 0xff is not UTF-8; save the file as UTF-8"),
        ("seed: 1\npolicy: [", "balancer.yaml:3: not YAML: while parsing a flow node"),
        ("seed: 1\n---\nseed: 2\n", "balancer.yaml:2: not YAML: expected a single document"),
        ("\x07", "balancer.yaml: not YAML: unacceptable character"),
        ("seed: 1\nlog: {}\nseed: 2\n", "balancer.yaml:3: seed: is there twice, first in line 1; keep one of the two"),
        ("seed: !!python/name:os.system\n", "balancer.yaml:1: seed: the tag tag:yaml.org,2002:python/name:os.system"),
        ("models: &a {b: *a}\n", "balancer.yaml:1: models.b: the alias contains itself"),
        ("? [a]\n: 1\n", "balancer.yaml:1: a key must be text"),
        ("[" * 2000 + "]" * 2000, "balancer.yaml:1: nested too deeply"),
        ("\npolcy: {}\n", 'balancer.yaml:2: polcy: unknown field (its value is {}); did you mean "policy"?'),
        (
            "log: {x: 1}\n",
            "balancer.yaml:1: log.x: unknown field (its value is 1); known here: decisions_share, format",
        ),
        ("policy: {name: wlp}\n", 'policy.name: "wlp" is not allowed: there is no such policy; did you mean "wlpr"?'),
        (
            "policy:\n  name: power_of_two\n  options:\n    choices: 0\n",
            "balancer.yaml:4: policy.options.choices: 0 is not allowed: must be greater than or equal to 1. Workers",
        ),
        (
            "policy: {name: power_of_two, options: {choice: 3}}\n",
            'policy.options.choice: unknown field (its value is 3); did you mean "choices"?',
        ),
        (
            "policy: {name: token_bucket, options: {when_empty: wait}}\n",
            "policy.options.when_empty: \"wait\" is not allowed: must be 'least_loaded' or 'shed'. What to do",
        ),
        ("policy: [random]\n", 'policy: ["random"] is not allowed: must be a mapping of fields: name, options.'),
        ("seed: '1'\n", 'balancer.yaml:1: seed: "1" is not allowed: must be a valid integer.'),
        ("seed: 1.5\n", "seed: 1.5 is not allowed: must be a valid integer."),
        ("seed:\n", "seed: null is not allowed: must be a valid integer."),
        ("limits: {shed_late: 1}\n", "limits.shed_late: 1 is not allowed: must be a valid boolean."),
        ("processes: 0\n", "processes: 0 is not allowed: must be greater than or equal to 1."),
        ("telemetry: {stale_after_s: .inf}\n", "telemetry.stale_after_s: Infinity is not allowed: must be a finite"),
        ("models: {a: {memory_bytes: 12 apples}}\n", 'a.memory_bytes: "12 apples" is not allowed: must be a whole'),
        ("models: {a: {memory_bytes: -1}}\n", "a.memory_bytes: -1 is not allowed: must be a whole number of bytes"),
        ("models: {a: {versions: 3}}\n", "models.a.versions: 3 is not allowed: must be a list."),
        ("listen: {envoy: localhost}\n", 'listen.envoy: "localhost" is not allowed: write host:port with a port'),
        ("listen: {reports: '::1:9002'}\n", "put an IPv6 address in brackets"),
        ("listen: {admin: 'a:70000'}\n", "write host:port with a port from 0 to 65535"),
        ("requests: {tenant_header: X-Tenant}\n", 'requests.tenant_header: "X-Tenant" is not allowed: must match'),
        (
            "seed: 1\nlisten:\n  admin: 127.0.0.1:9004\nprocesses: 2\n",
            'balancer.yaml:3: listen.admin: "127.0.0.1:9004" is not allowed: port 9004 is needed for listen.envoy,',
        ),
        (
            "listen: {reports: 127.0.0.1:9003}\n",
            "for listen.envoy, which takes 9002 to 9003; move it",
        ),
        ("listen: {reports: 0.0.0.0:8090}\n", "listen.admin: "),
        ("listen: {admin: '[::]:9102'}\n", "port 9102 is needed for listen.reports, which takes it; move it"),
        ("listen: {admin: '127.0.0.1:9102', reports: 'localhost:9102'}\n", "port 9102 is needed for listen.reports"),
        (
            "processes: 2\nenvoy:\n  listen: 0.0.0.0:9004\n",
            'balancer.yaml:3: envoy.listen: "0.0.0.0:9004" is not allowed: port 9004 is needed for listen.envoy, '
            "which takes 9002 to 9004; move it, or list envoy.balancers where Envoy is on another machine.",
        ),
        (
            "listen: {admin: 0.0.0.0:8080}\n",
            'balancer.yaml: envoy.listen: "0.0.0.0:8080" is not allowed: port 8080 is needed for listen.admin, which',
        ),
        (
            "envoy: {admin: 'localhost:9102', balancers: ['127.0.0.1:9003']}\n",
            'envoy.admin: "localhost:9102" is not allowed: port 9102 is needed for listen.reports, which takes it;',
        ),
        (
            "envoy: {admin: '127.0.0.1:8080', balancers: ['10.0.0.5:9003']}\n",
            "port 8080 is needed for envoy.listen, which takes it; move it.",
        ),
        ("listen: {grpc: 127.0.0.1:9002}\n", "write listen.envoy for Envoy and listen.reports for agents"),
        ("listen: {envoy: unix:relative}\n", "write unix:/ and an absolute path"),
        ("listen: {envoy: unix:/s, reports: unix:/s}\n", 'listen.reports: "unix:/s" is not allowed: is the socket of'),
        ("listen: {admin: unix:/run/a}\n", "write host:port"),
        ("envoy: {listen: '0.0.0.0:70000'}\n", "write host:port with a port from 0 to 65535"),
        ("envoy: {request_buffer_limit_bytes: 4GiB}\n", "envoy.request_buffer_limit_bytes: "),
        ("envoy: {max_heap_bytes: -1}\n", "envoy.max_heap_bytes: "),
        (
            "listen: {envoy: 'a:0'}\nprocesses: 2\n",
            "processes: 2 is not allowed: must be 1 where a port",
        ),
        ("listen: {envoy: 'a:65535'}\n", "processes: 1 is not allowed: needs one port for each process"),
        (
            "tls: {envoy: {cert_file: a, key_file: b, client_ca_file: c}}\n",
            "envoy.balancer_tls: null is not allowed: must be set exactly where tls.envoy is",
        ),
        (
            "tls: {cert_file: a, key_file: b}\n",
            'tls.cert_file: "a" is not allowed: belongs to one listener; write tls: {',
        ),
        (
            "tls: {envoy: {cert_file: a}}\n",
            "tls.envoy.key_file: is missing and has no default; add it.",
        ),
        (
            "tls: {admin: {cert_file: a, key_file: b}}\n",
            "tls.admin.client_ca_file: null is not allowed: may be left out only where admin.token_file is set",
        ),
        ("tls: {reports: {cert_file: a, key_file: b}}\n", "tls.reports.client_ca_file: is missing"),
        (
            "tls: {reports: {cert_file: a, key_file: b, client_ca_file: c, client_san: agents.test}}\n",
            'tls.reports.client_san: "agents.test" is not allowed: must have {worker} in it, once',
        ),
        ("listen: {gateways: '127.0.0.1:9002'}\n", "port 9002 is needed for listen.envoy"),
        *(
            (f"tls: {{gateways: {tls}}}\n", "set self_signed: true, or both cert_file and key_file")
            for tls in ("{}", "{cert_file: a}", "{self_signed: true, cert_file: a, key_file: b}", "{key_file: a}")
        ),
        (
            "discovery: {file: a, workers: [{name: a, address: 10.0.0.1, grpc_port: 1, http_port: 2}]}\n",
            "names a file and lists workers; keep one of file and workers",
        ),
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
        ("guard: {enabled: maybe}\n", "guard.enabled: \"maybe\" is not allowed: must be 'auto', True or False"),
        ("guard: {baseline: {name: wlp}}\n", 'guard.baseline.name: "wlp" is not allowed: there is no such policy'),
        (
            "guard: {enabled: true}\n",
            'guard.baseline.name: "expected_latency" is not allowed: is the policy in force; name another',
        ),
        ("guard: {window_every_s: 0.5}\n", "guard.window_every_s: 0.5 is not allowed: must be at least three times"),
        ("guard: {quiet_s: 1000}\n", "guard.quiet_s: 1000 is not allowed: must be less than or equal to 600"),
        ("guard: {margins: {late: -1}}\n", "guard.margins.late: -1 is not allowed"),
        ("shadow: {}\n", "shadow.name: is missing"),
        ("shadow: {name: wlpr, share: 0}\n", "shadow.share: 0 is not allowed: must be greater than 0"),
        ("shadow: {name: wlpr, options: {choices: 1}}\n", "shadow.options.choices: unknown field"),
        (
            "rollout: {name: expected_latency}\n",
            'rollout.name: "expected_latency" is not allowed: is the policy in force already; remove the section',
        ),
        ("rollout: {name: wlpr, shares: [0.5, 0.1]}\n", "rollout.shares: [0.5, 0.1] is not allowed: must ascend"),
        ("rollout: {name: wlpr, shares: []}\n", "rollout.shares: [] is not allowed"),
        ("rollout: {name: wlpr, step_s: 0}\n", "rollout.step_s: 0 is not allowed"),
        ("rollout: {name: wlpr, watch_s: 9}\n", "rollout.watch_s: unknown field (its value is 9)"),
        ("discovery: {kubernetes: {}}", "must have either label_selector or inference_pool, which say the pods"),
        (
            "discovery: {kubernetes: {label_selector: a, inference_pool: b}}",
            "must have either label_selector or inference_pool",
        ),
        ("discovery: {kubernetes: {inference_pool: B}}", "discovery.kubernetes.inference_pool"),
        ("discovery: {kubernetes: {label_selector: ''}}", "discovery.kubernetes.label_selector"),
        ("discovery: {kubernetes: {label_selector: a, namespace: 'a/b'}}", "discovery.kubernetes.namespace"),
        (
            "discovery: {kubernetes: {label_selector: a}, file: b}",
            "names kubernetes beside another source; keep one of",
        ),
        (
            "discovery: {kubernetes: {label_selector: a}, dns: {name: b}}",
            "names kubernetes beside another source; keep one of",
        ),
        (
            "discovery: {dns: {name: b}, workers: [{name: a, address: 10.0.0.1, grpc_port: 1, http_port: 2}]}",
            "names dns beside",
        ),
        ("discovery: {dns: {name: 'a b'}}", "discovery.dns.name"),
        (
            "discovery: {dns: {name: a, grpc_port: 8000}}",
            "discovery.dns.http_port: 8000 is not allowed: is the grpc_port too",
        ),
        ("discovery: {ray: {dashboard: ray-head:8265}}", "discovery.ray.dashboard"),
        ("discovery: {ray: {dashboard: 'http://u:p@ray-head:8265'}}", "discovery.ray.dashboard"),
        ("discovery: {ray: {dashboard: 'http://ray-head:8265'}, file: b}", "names ray beside another source"),
        ("holding: {order: random}", "holding.order"),
        ("holding: {max_s: 301}", "holding.max_s"),
        ("holding: {detour: 0.5}", "holding.detour"),
        ("holding: {models: {m: {window_batches: -1}}}", "holding.models.m.window_batches"),
        ("holding: {weights: {acme: 0}}", "holding.weights.acme"),
        ("holding: {models: {m: {}}}\nenvoy: {frontend: native}", "envoy.frontend"),
    ],
)
def test_refused_with_place_value_and_remedy(content: bytes | str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse(content, "balancer.yaml")
    assert message in str(caught.value)
