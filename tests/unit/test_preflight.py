"""What `balancer check` opens beyond the config: it refuses what `serve` could not use."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.certificates import Authority

from balancer import config
from balancer.preflight import check_files
from balancer.yaml_document import ConfigError


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


def test_a_key_of_another_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("one", dns="a.test")
    authority.issue("two", dns="a.test")
    text = "tls: {admin: {cert_file: one.crt, key_file: two.key, client_ca_file: authority.pem}}"
    assert f"tls.admin.key_file: {tmp_path}/two.key is not the key of {tmp_path}/one.crt" in refused(text, tmp_path)


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
