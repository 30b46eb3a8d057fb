"""Those that speak to a gateway or a balancer find it, by certificates that fit."""

import pytest
import yaml
from support.chart import EXAMPLES, NAMESPACE, container, containers, example, named, rendered

from balancer.cli.relay import relay as relay_command
from balancer.config.listen import ReportsListenerTls
from balancer.ingress.command import ingress as ingress_command


def test_certificates_name_who_shows_them() -> None:
    values = {"certificates.source": "certManager", "certificates.issuer.name": "authority"}
    found = rendered(EXAMPLES["try"], values=values)
    agents = named(found, "Certificate", "fleet-balancer-triton-cpu-agents")["spec"]
    pool = named(found, "StatefulSet", "fleet-balancer-triton-cpu")
    pods = [f"{pool['metadata']['name']}-{ordinal}" for ordinal in range(pool["spec"]["replicas"])]
    assert agents["uris"] == [f"spiffe://balancer/agent/{pod}" for pod in pods]
    given = dict(each.lstrip("-").split("=", 1) for each in container(pool, "agent")["args"] if "=" in each)
    assert named(found, "Certificate", "fleet-balancer-balancer")["spec"]["dnsNames"] == [given["tls-name"]]
    assert (
        f"fleet-balancer.{NAMESPACE}.svc" in named(found, "Certificate", "fleet-balancer-clients")["spec"]["dnsNames"]
    )
    own = container(named(example("fleet"), "StatefulSet", "fleet-balancer-triton-l4"), "agent")
    assert "--tls-ca=/etc/balancer/tls/ca.crt" in own["args"]


def test_agents_report_to_relays_and_relays_to_every_balancer_by_certificates_that_fit() -> None:
    found = rendered(EXAMPLES["fleet"], values={"gateway.processes": 2, "gateway.frontend": "pick"})
    (relay,) = containers(named(found, "Deployment", "fleet-balancer-relays"))
    given = [each.lstrip("-").split("=", 1) for each in relay["args"] if "=" in each]
    told = [address for option, address in given if option == "balancer"]
    assert told == ["fleet-balancer-balancers:9102", "fleet-balancer-balancers:9103"]
    assert dict(given)["listen"] == "0.0.0.0:9102"
    agent = container(named(found, "StatefulSet", "fleet-balancer-triton-l4"), "agent")
    certificate = named(found, "Certificate", "fleet-balancer-relays")["spec"]
    assert {f"--tls-name={name}" for name in certificate["dnsNames"]} <= {*agent["args"]}
    assert certificate["uris"] == [ReportsListenerTls.model_fields["relay_san"].default]
    assert {name for name, _ in given} <= {option.lstrip("-") for each in relay_command.params for option in each.opts}


@pytest.mark.parametrize("shows", [False, True])
def test_the_topic_ingress_finds_listener_balancer_and_broker_by_certificates_that_fit(shows: bool) -> None:
    found = rendered(EXAMPLES["fleet"], values={"certificates.clientsShowCertificates": shows})
    workload = named(found, "StatefulSet", "fleet-balancer-topic-ingress")
    (ingress,) = containers(workload)
    given = dict(each.lstrip("-").split("=", 1) for each in ingress["args"] if "=" in each)
    assert given["listener"] == "https://fleet-balancer:8080"
    assert given["listener-tls-name"] in named(found, "Certificate", "fleet-balancer-clients")["spec"]["dnsNames"]
    assert given["balancer"] == "fleet-balancer-balancers:8090"
    assert [given["tls-name"]] == named(found, "Certificate", "fleet-balancer-balancer")["spec"]["dnsNames"]
    assert ("listener-tls-cert" in given) == shows
    assert (given["requests"], given["answers"]) == ("asked", "said")
    options = {option.lstrip("-") for each in ingress_command.params for option in each.opts}
    assert {each.lstrip("-").partition("=")[0] for each in ingress["args"][1:]} <= options
    (broker,) = (each for each in ingress["env"] if each["name"] == "BALANCER_BROKER")
    assert broker["valueFrom"]["secretKeyRef"] == {"name": "broker", "key": "url"}
    assert broker["name"] in {each.envvar for each in ingress_command.params}
    secrets = [each["secret"] for each in workload["spec"]["template"]["spec"]["volumes"] if "secret" in each]
    whole = {each["secretName"] for each in secrets if "items" not in each}
    assert whole == {"balancer-admin", *(["fleet-balancer-topic-ingress-tls"] if shows else [])}, "no key of others"


@pytest.mark.parametrize("name", ["fleet", "try", "others"])
def test_a_topic_ingress_needs_no_more_than_a_broker(name: str) -> None:
    found = rendered(EXAMPLES[name], values={"topicIngress": {"replicas": 1, "brokerSecret": "b", "arguments": []}})
    (ingress,) = containers(named(found, "StatefulSet", "fleet-balancer-topic-ingress"))
    with_tls = "listener-tls-ca" in " ".join(ingress["args"])
    assert f"--listener={'https' if with_tls else 'http'}://fleet-balancer:8080" in ingress["args"]


@pytest.mark.parametrize("tls", ["none", "selfSigned", "certificates"])
def test_other_gateways_find_picks_at_a_service_of_their_own(tls: str) -> None:
    asked = {"gateway": {"picks": {"enabled": True, "tls": tls}}}
    found = rendered(EXAMPLES["fleet" if tls == "certificates" else "others"], values=asked)
    config = yaml.safe_load(named(found, "ConfigMap", "fleet-balancer-config")["data"]["balancer.yaml"])
    assert (config["listen"]["gateways"], config["listen"]["health"]) == ("0.0.0.0:9002", "0.0.0.0:9003")
    certificate = {"cert_file": "/etc/balancer/tls/tls.crt", "key_file": "/etc/balancer/tls/tls.key"}
    expected = {"none": None, "selfSigned": {"self_signed": True}, "certificates": certificate}[tls]
    assert config.get("tls", {}).get("gateways") == expected
    ports = named(found, "Service", "fleet-balancer-picks")["spec"]["ports"]
    assert [each["port"] for each in ports] == [9002, 9003]
