"""What `balancer check` opens beyond the config: it refuses what `serve` could not use."""

import datetime
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.certificates import Authority
from support.plugins import installed

from balancer.config import config
from balancer.files.yaml_document import ConfigError
from balancer.server import preflight
from balancer.server.preflight import check_files


def refused(text: str, folder: Path) -> str:
    path = folder / "balancer.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        check_files(config.load(path), path)
    return str(caught.value)


def test_missing_certificates_are_named_each_from_the_folder_of_the_config(tmp_path: Path) -> None:
    lines = refused("tls: {reports: {cert_file: a, key_file: b, client_ca_file: /c}}", tmp_path).splitlines()
    fields = {"cert_file": tmp_path / "a", "key_file": tmp_path / "b", "client_ca_file": Path("/c")}
    assert lines == [
        f"{tmp_path}/balancer.yaml: tls.reports.{field}: {file} cannot be read: No such file or directory; "
        "put the file there or name another"
        for field, file in fields.items()
    ]


def test_the_client_of_kubernetes_is_an_optional_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "discovery: {kubernetes: {label_selector: app=triton}}"
    monkeypatch.setattr(preflight, "is_installed", lambda: False)
    assert refused(text, tmp_path) == (
        f"{tmp_path}/balancer.yaml: discovery.kubernetes: needs the package `kubernetes`: "
        "pip install 'balancer[kubernetes]'"
    )
    monkeypatch.setattr(preflight, "is_installed", lambda: True)
    assert "discovery.kubernetes: the API is not asked" in notes(text, tmp_path)


def test_a_key_of_another_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("one", dns="a.test")
    authority.issue("two", dns="a.test")
    text = "tls: {admin: {cert_file: one.crt, key_file: two.key, client_ca_file: authority.pem}}"
    assert f"tls.admin.key_file: {tmp_path}/two.key is not the key of {tmp_path}/one.crt" in refused(text, tmp_path)


def notes(text: str, folder: Path) -> str:
    path = folder / "balancer.yaml"
    path.write_text(text)
    return "\n".join(check_files(config.load(path), path))


def envoys(folder: Path, *, balancers: Sequence[str] = (), **files: str) -> str:
    """A config whose Envoy has these files, and else those of the identity `one`."""
    own = {
        "cert_file": f"{folder}/one.crt",
        "key_file": f"{folder}/one.key",
        "client_ca_file": f"{folder}/authority.pem",
    }
    tls = {name: files.get(name, file) for name, file in own.items()}
    towards = {"cert_file": tls["cert_file"], "key_file": tls["key_file"], "server_name": "a.test"}
    towards["ca_file"] = files.get("ca_file", own["client_ca_file"])
    envoy = {"balancers": list(balancers), "tls": tls, "balancer_tls": towards}
    return json.dumps({"tls": {"envoy": own}, "envoy": envoy})


def test_certificates_of_envoy_are_opened(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("one", dns="a.test")
    assert notes(envoys(tmp_path), tmp_path) == ""
    text = refused(envoys(tmp_path, cert_file="/nowhere.crt", ca_file="/nowhere.pem"), tmp_path)
    for field in ("tls.cert_file: /nowhere.crt", "balancer_tls.cert_file: /nowhere.crt", "balancer_tls.ca_file: /now"):
        assert f"{tmp_path}/balancer.yaml: envoy.{field}" in text
    assert text.count("cannot be read: No such file or directory; put the file there or name another") == 3
    assert "envoy.tls.key_file: / is a directory; name a regular file" in refused(
        envoys(tmp_path, key_file="/"), tmp_path
    )


def test_certificates_of_envoy_that_do_not_fit(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, two = authority.issue("one", dns="a.test"), authority.issue("two", dns="a.test")
    for name in ("tls", "balancer_tls"):
        text = refused(envoys(tmp_path, key_file=str(two.key)), tmp_path)
        assert f"envoy.{name}.key_file: {two.key} is not the key of {one.cert}; name the two that belong" in text
    text = refused(envoys(tmp_path, ca_file=str(one.key)), tmp_path)
    assert f"envoy.balancer_tls.ca_file: {one.key} has no certificate in it; name a PEM file that has" in text
    text = refused(envoys(tmp_path, key_file=str(one.cert)), tmp_path)
    assert f"envoy.tls.key_file: {one.cert} has no private key in it; name a PEM file that has" in text
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert f"envoy.balancer_tls.ca_file: {broken} cannot be used: " in refused(
        envoys(tmp_path, ca_file=str(broken)), tmp_path
    )


def test_an_envoy_elsewhere_may_have_its_files_there(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, two = authority.issue("one", dns="a.test"), authority.issue("two", dns="a.test")
    there = ["10.0.0.5:9003"]
    text = notes(envoys(tmp_path, balancers=there, cert_file="/nowhere.crt"), tmp_path)
    for name in ("tls", "balancer_tls"):
        assert f"envoy.{name}.cert_file: /nowhere.crt is not here, so not checked; check it where Envoy runs" in text
    text = notes(envoys(tmp_path, ca_file="ca.pem"), tmp_path)
    assert text == "warning: envoy.balancer_tls.ca_file: ca.pem is not here, so not checked; give an absolute path"
    # What is here is checked, wherever Envoy is.
    text = envoys(tmp_path, balancers=there, key_file=str(two.key))
    assert f"{two.key} is not the key of {one.cert}" in refused(text, tmp_path)


def test_certificates_that_expire(tmp_path: Path) -> None:
    def days(number: float) -> datetime.timedelta:
        return datetime.timedelta(days=number)

    authority = Authority(tmp_path)
    authority.issue("one", dns="a.test", since=days(-9), until=days(-1))
    text = refused(envoys(tmp_path), tmp_path)
    for section in ("tls.envoy", "envoy.tls", "envoy.balancer_tls"):
        assert f"{section}.cert_file: {tmp_path}/one.crt expired on 20" in text
    assert "UTC; renew it" in text
    authority.issue("one", dns="a.test", since=days(1), until=days(90))
    assert "UTC on only; wait, or set this machine's clock" in refused(envoys(tmp_path), tmp_path)
    authority.issue("one", dns="a.test", since=days(-80), until=days(10))
    text = notes(envoys(tmp_path), tmp_path)
    for section in ("tls.envoy", "envoy.tls", "envoy.balancer_tls"):
        assert f"warning: {section}.cert_file: {tmp_path}/one.crt expires on 20" in text
    # Too early to renew: far away, or half the time of a short-lived one.
    for since, until in ((-1, 89), (-1, 1)):
        authority.issue("one", dns="a.test", since=days(since), until=days(until))
        assert notes(envoys(tmp_path), tmp_path) == ""


def test_one_authority_that_is_valid_is_enough_and_one_of_a_chain_that_is_not_too_much(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    old = authority.issue("old", dns="a.test", until=-datetime.timedelta(minutes=1)).cert.read_bytes()
    one = authority.issue("one", dns="a.test")
    both = tmp_path / "both.pem"
    both.write_bytes(authority.pem + old)
    assert notes(envoys(tmp_path, ca_file=str(both)), tmp_path) == ""
    both.write_bytes(one.cert.read_bytes() + old)
    assert f"envoy.tls.cert_file: {both} expired on" in refused(envoys(tmp_path, cert_file=str(both)), tmp_path)


def test_a_list_of_workers_that_is_not_there(tmp_path: Path) -> None:
    text = notes("discovery: {file: workers.yaml}", tmp_path)
    assert text.startswith(f"warning: discovery.file: {tmp_path}/workers.yaml is not here, so not checked; until it is")
    assert text.endswith("put the file there or name another")
    (tmp_path / "workers.yaml").mkdir()
    assert refused("discovery: {file: workers.yaml}", tmp_path) == (
        f"{tmp_path}/balancer.yaml: discovery.file: {tmp_path}/workers.yaml is a directory; name a regular file"
    )


def test_a_decision_log_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    message = f"decision_log.folder: {tmp_path}/taken cannot be written to: Not a directory; let the balancer write"
    assert message in refused("decision_log: {folder: taken}", tmp_path)
    assert f"decision_log.folder: {tmp_path}/taken/below ({tmp_path}/taken)" in refused(
        "decision_log: {folder: taken/below}", tmp_path
    )


def test_an_admin_token_that_is_not_there(tmp_path: Path) -> None:
    assert f"admin.token_file: {tmp_path}/t cannot be read" in refused("admin: {token_file: t}", tmp_path)


def test_what_can_be_used_is_left_as_it_was(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("one", dns="a.test")
    path = tmp_path / "balancer.yaml"
    path.write_text(
        "tls: {reports: {cert_file: one.crt, key_file: one.key, client_ca_file: authority.pem}}\n"
        "decision_log: {folder: a/b}\n"
    )
    before = sorted(tmp_path.iterdir())
    check_files(config.load(path), path)
    assert sorted(tmp_path.iterdir()) == before


def test_policies_that_fail_or_are_not_compiled_are_reported_as_by_balancer_policies(tmp_path: Path) -> None:
    with installed("moody_plugin"):
        path, mood = tmp_path / "balancer.yaml", tmp_path / "mood"
        path.write_text(f"policy: {{name: moody_file, options: {{mood: {mood}}}}}\nshadow: {{name: wlpr, share: 0.1}}")
        mood.write_text("raise")
        (text,) = check_files(config.load(path), path)
        assert text.startswith('warning: policy.name: "moody_file" gives no valid answer: RuntimeError: moody; ')
        mood.write_text("good")
        (text,) = check_files(config.load(path), path)
        assert text.startswith('policy.name: "moody_file" is not compiled, since it calls ')
