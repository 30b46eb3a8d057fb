"""The schema: what is accepted, what is refused and how the refusal helps, and what the core is told."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from balancer.config import config
from balancer.config.config import Config, ConfigError
from balancer.config.for_envoy import bootstrap_options
from balancer.kernel.settings import EstimatorSettings, Limits, ModelSettings, Settings, TokenSettings
from balancer.native.folder import default_folder
from policies import BUILTIN

EXAMPLE = Path(__file__).parents[3] / "deploy" / "balancer.yaml"


def refused(content: bytes | str) -> str:
    with pytest.raises(ConfigError) as caught:
        config.parse(content, "balancer.yaml")
    return str(caught.value)


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
    ],
)
def test_refused_with_place_value_and_remedy(content: bytes | str, message: str) -> None:
    assert message in refused(content)


@pytest.mark.parametrize(
    "content",
    [
        # Envoy has a machine of its own; another address of this one; any free port.
        "envoy: {listen: '0.0.0.0:9002', admin: '127.0.0.1:9102', balancers: ['10.0.0.5:9003', 'balancer:9003']}",
        "envoy: {listen: '10.0.0.1:9002'}",
        "{envoy: {listen: '127.0.0.1:0', admin: '127.0.0.1:0'}, listen: {admin: '127.0.0.1:0'}}",
        "{envoy: {listen: '127.0.0.1:9002'}, listen: {envoy: 'unix:/run/envoy.sock'}}",
    ],
)
def test_ports_that_only_look_alike_are_taken(content: str) -> None:
    config.parse(content, "balancer.yaml")


def test_all_problems_are_named_at_once() -> None:
    lines = refused("seed: x\nlog:\n  level: loud\nmodels:\n  a: {devices: [1]}\n").splitlines()
    assert sorted(line.split(": ")[0] for line in lines) == ["balancer.yaml:1", "balancer.yaml:3", "balancer.yaml:5"]


def test_a_billion_laughs_are_refused() -> None:
    layers = "".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]\n" for i in range(1, 10))
    assert "values once aliases are expanded" in refused("l0: &l0 [1]\n" + layers)


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.yaml: cannot be read: No such file or directory; put the file there"):
        config.load(tmp_path / "no.yaml")


def test_empty_mapping_is_all_defaults_of_the_core() -> None:
    parsed = config.parse("{}", "balancer.yaml")
    assert parsed == Config()
    assert parsed.settings() == Settings()
    assert parsed.policy.built == BUILTIN["expected_latency"]()


def test_example_is_good() -> None:
    parsed = config.load(EXAMPLE)
    assert parsed.settings().limits.max_pending_per_worker == 256
    assert [worker.name for worker in parsed.discovery.workers] == ["triton-0", "triton-1"]


def test_everything_reaches_the_core() -> None:
    parsed = config.parse(
        """
        models: {a: {memory_bytes: 1.5GiB, devices: [A100], versions: [1, "2"]}}
        limits: {max_pending_per_worker: 9, sheddable_priority: 2, sheddable_max_pending_per_worker: 3, shed_late: true}
        estimators:
          key_memory: 9
          tokens: {capacity: 4, refill_per_s: 5}
        requests: {sticky_keys: false, outcome_timeout_s: 7}
        telemetry: {required: false, stale_after_s: 8}
        """,
        "balancer.yaml",
    )
    assert parsed.settings() == Settings(
        models={"a": ModelSettings(3 * 2**29, ("A100",), ("1", "2"))},
        limits=Limits(9, 2, 3, True),
        estimators=EstimatorSettings(key_memory=9, tokens=TokenSettings(4, 5)),
        reports_required=False,
        stale_after_s=8,
        sticky_keys=False,
        outcome_timeout_s=7,
    )


@pytest.mark.parametrize("name", BUILTIN)
def test_every_policy_is_built_with_its_defaults_and_refuses_what_it_does_not_know(name: str) -> None:
    parsed = config.from_mapping({"policy": {"name": name}})
    assert parsed.policy.built == BUILTIN[name]()
    assert parsed.policy.options == BUILTIN[name]().options()
    with pytest.raises(ConfigError, match=r"policy\.options\.no_such_option: unknown field"):
        config.from_mapping({"policy": {"name": name, "options": {"no_such_option": 1}}})


def test_options_reach_the_policy() -> None:
    policy = config.parse("policy: {name: power_of_two, options: {choices: 5, weighted: true}}", "f").policy.built
    assert dataclasses.asdict(policy) == {"choices": 5, "weighted": True}


def test_hash_is_of_what_is_meant_not_of_how_it_is_written() -> None:
    assert config.parse("seed: 0  # comment\nprocesses: 1\n", "a").hash == Config().hash
    assert config.parse("seed: 1\n", "a").hash != Config().hash


def test_keys_and_scalars_are_read_as_meant() -> None:
    parsed = config.parse(
        'models: {on: {}, 1: {}, 2025-01-01: {versions: ["1e3", "2025-01-01"]}}\ntelemetry: {stale_after_s: 1e1}', "f"
    )
    assert list(parsed.models) == ["on", "1", "2025-01-01"]
    assert parsed.telemetry.stale_after_s == 10
    assert config.parse(config.effective_yaml(parsed), "again") == parsed


def test_byte_order_mark_and_json_are_fine() -> None:
    assert config.parse(b'\xef\xbb\xbf{"seed": 3, "models": {"a": {"devices": ["L4"]}}}', "f").seed == 3


@pytest.mark.parametrize(
    ("content", "fields"),
    [
        ("{}", []),
        ("policy: {name: random}\nmodels: {a: {}}\nlimits: {shed_late: true}\nseed: 3\nlog: {level: debug}", []),
        ("telemetry: {required: false}\nrequests: {sticky_keys: false}\nestimators: {key_memory: 1}", []),
        ("discovery: {workers: [{name: a, address: 10.0.0.1, grpc_port: 1, http_port: 2}]}", []),
        ("discovery: {file: a}\nprocesses: 2", ["discovery.file", "processes"]),
        (
            "discovery: {kubernetes: {label_selector: a=b}}",
            [f"discovery.kubernetes.{name}" for name in ("grpc_port", "http_port", "label_selector")],
        ),
        ("listen: {admin: 'a:1'}\nenvoy: {listen: 'a:2'}", ["envoy.listen", "listen.admin"]),
        (
            "tls: {reports: {cert_file: a, key_file: b, client_ca_file: c}}",
            [f"tls.reports.{name}" for name in ("cert_file", "client_ca_file", "client_san", "key_file")],
        ),
    ],
)
def test_what_needs_a_restart(content: str, fields: list[str]) -> None:
    other = config.parse(content, "f")
    assert config.needs_restart(Config(), other) == fields
    assert config.needs_restart(other, Config()) == fields


def test_processes_have_addresses_of_their_own_and_envoy_knows_them() -> None:
    parsed = config.parse("processes: 2\nlisten: {envoy: '0.0.0.0:9002', reports: 'a:9102', admin: '[::1]:8090'}", "f")
    assert [parsed.listen.envoy_addresses(i)[-1] for i in range(2)] == ["0.0.0.0:9003", "0.0.0.0:9004"]
    assert parsed.listen.envoy_addresses(1) == ("0.0.0.0:9002", "0.0.0.0:9004")
    assert [parsed.listen.reports_address(i) for i in range(2)] == ["a:9102", "a:9103"]
    assert [parsed.listen.admin_address(i) for i in range(2)] == ["[::1]:8090", "[::1]:8091"]
    assert bootstrap_options(parsed).balancers == ("127.0.0.1:9003", "127.0.0.1:9004")


def test_a_unix_socket_is_of_one_process() -> None:
    parsed = config.parse("processes: 2\nlisten: {envoy: unix:/run/b/envoy, reports: unix:/run/b/reports}", "f")
    assert parsed.listen.envoy_addresses(1) == ("unix:/run/b/envoy.1",)
    assert parsed.listen.envoy_addresses(1)[-1] == "unix:/run/b/envoy.1"
    assert parsed.listen.reports_address(0) == "unix:/run/b/reports.0"
    assert bootstrap_options(parsed).balancers == ("unix:/run/b/envoy.0", "unix:/run/b/envoy.1")


def test_certificates_are_named_from_the_folder_of_the_config() -> None:
    parsed = config.parse(
        "tls: {admin: {cert_file: a, key_file: /b}}\nadmin: {token_file: t}", "/etc/balancer/balancer.yaml"
    )
    assert parsed.tls.admin is not None
    assert (parsed.tls.admin.cert_file, parsed.tls.admin.key_file) == ("/etc/balancer/a", "/b")
    assert parsed.tls.admin.client_ca_file is None


def test_envoy_reaches_balancers_at_unix_sockets_too() -> None:
    parsed = config.parse("envoy: {balancers: ['unix:/run/balancer/0.sock', '10.0.0.1:9003']}", "f")
    assert bootstrap_options(parsed).balancers == ("unix:/run/balancer/0.sock", "10.0.0.1:9003")
    for wrong in ("unix:relative", "nowhere", "h:0", ":9000"):
        with pytest.raises(ConfigError, match=wrong):
            config.parse(f"envoy: {{balancers: ['{wrong}']}}", "f")
    with pytest.raises(ConfigError, match="give its IP address"):
        config.parse("envoy: {balancers: ['unix:/run/balancer/0.sock', 'balancer.svc:9003']}", "f")


def test_workers_file_is_found_beside_the_config() -> None:
    parsed = config.parse("discovery: {file: workers.yaml}", "f")
    assert parsed.discovery_file(Path("/etc/balancer/balancer.yaml")) == Path("/etc/balancer/workers.yaml")
    assert Config().discovery_file(Path("balancer.yaml")) is None


def test_no_limit_is_null_in_the_file_and_infinite_in_the_core() -> None:
    parsed = config.parse("limits: {max_pending_per_worker: null}", "f")
    assert parsed.settings().limits.max_pending_per_worker == math.inf


def test_native_is_for_one_process_beside_its_envoy(tmp_path: Path) -> None:
    native = "envoy: {frontend: native, shared_folder: /dev/shm/mine}"
    parsed = config.parse(native, "f")
    assert parsed.shared_folder == Path("/dev/shm/mine")
    assert config.parse("envoy: {frontend: native}", "f").shared_folder == default_folder("127.0.0.1:9002")
    assert config.parse("{}", "f").shared_folder is None
    assert parsed.endpoints_folder is None
    assert config.parse("envoy: {endpoints_folder: /e, frontend: native}", "f").endpoints_folder == Path("/e")
    with pytest.raises(ConfigError, match=r"endpoints_folder: \"here\" is not allowed: must be an absolute path"):
        config.parse("envoy: {endpoints_folder: here}", "f")
    with pytest.raises(ConfigError, match=r"processes: 2 is not allowed: must be 1 where envoy\.frontend is native"):
        config.parse(f"processes: 2\n{native}", "f")
    with pytest.raises(ConfigError, match="needs a balancer on the same machine"):
        config.parse("envoy: {frontend: native, balancers: ['balancer.svc:9003']}", "f")
    with pytest.raises(ConfigError, match="must be an absolute path"):
        config.parse("envoy: {frontend: native, shared_folder: here}", "f")


@pytest.mark.parametrize("tls", ["{self_signed: true}", "{cert_file: a.crt, key_file: a.key}"])
def test_the_certificate_for_other_gateways_is_one_of_two(tls: str) -> None:
    assert config.parse(f"tls: {{gateways: {tls}}}", "f").tls.gateways is not None


def test_the_chapters_config_fits_and_would_not_if_the_picks_of_envoy_stayed_where_they_are() -> None:
    chapter = Path(__file__).parents[3] / "docs" / "operate" / "gateways.md"
    text = chapter.read_text().split("```yaml\n")[1].split("```")[0]
    assert config.parse(text, "gateways.md").listen.gateways == "0.0.0.0:9002"
    without = "".join(line for line in text.splitlines(keepends=True) if "  envoy: " not in line)
    for moved in (without, without.replace("9002", "9001")):
        with pytest.raises(ConfigError, match=r"listen\.\w+: .* is needed for listen\.envoy, which takes 9002 to 9003"):
            config.parse(moved, "gateways.md")
