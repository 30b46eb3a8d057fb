"""The schema: what is accepted, what is refused and how the refusal helps, and what the core is told."""

import dataclasses
import math
from pathlib import Path

import pytest

from balancer.config import config
from balancer.config.config import Config, ConfigError
from balancer.config.frontend import bootstrap_options
from balancer.discovery.cluster.api import ClusterAccess
from balancer.discovery.pods.watch import PodsWanted
from balancer.kernel.settings import EstimatorSettings, Limits, ModelSettings, Settings, TokenSettings
from balancer.native.state import default_folder
from policies import BUILTIN

EXAMPLE = Path(__file__).parents[3] / "deploy" / "balancer.yaml"


def refused(content: bytes | str) -> str:
    with pytest.raises(ConfigError) as caught:
        config.parse(content, "balancer.yaml")
    return str(caught.value)


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


@pytest.mark.parametrize("name", sorted(set(BUILTIN) - {"learned"}))  # which has no default: test_learned_file.py
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
            [f"tls.reports.{name}" for name in ("cert_file", "client_ca_file", "client_san", "key_file", "peer_san")]
            + ["tls.reports.relay_san"],
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


def test_pods_are_wanted_as_the_config_says(tmp_path: Path) -> None:
    parsed = config.parse("discovery: {kubernetes: {label_selector: a=b}}", "f").discovery.kubernetes
    assert parsed is not None
    assert parsed.wanted() == PodsWanted(ClusterAccess("a=b"))
    more = "namespace: inference, kubeconfig: kube/config, grpc_port: 5001, http_port: 5000"
    text = f"discovery: {{kubernetes: {{label_selector: 'a in (b, c)', {more}}}}}"
    parsed = config.parse(text, str(tmp_path / "balancer.yaml")).discovery.kubernetes
    assert parsed is not None
    access = ClusterAccess("a in (b, c)", "inference", tmp_path / "kube" / "config")
    assert parsed.wanted() == PodsWanted(access, (5001, 5000))
    parsed = config.parse("discovery: {kubernetes: {inference_pool: triton.v1}}", "f").discovery.kubernetes
    assert parsed is not None
    assert parsed.wanted() == PodsWanted(ClusterAccess(""), pool="triton.v1")
