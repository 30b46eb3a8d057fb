"""Opens what `serve` would open, beyond the config file itself: certificates, the admin token, the decision
log's folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from balancer.admin.token import TokenError, read_token
from balancer.certificates import read_material
from balancer.config import Config
from balancer.yaml_document import ConfigError, Problem


def check_files(config: Config, config_path: Path) -> None:
    """Try every file and folder that a balancer with this config would use. Profiles, weights and workers that the
    config names were read with it.

    Raises:
        ConfigError: with every problem found: field, value, remedy.
    """
    problems = [*_certificates(config), *_token(config), *_decision_log(config, config_path)]
    if problems:
        raise ConfigError([Problem(str(config_path), None, each.field, each.message) for each in problems])


def _certificates(config: Config) -> Iterator[Problem]:
    for name in type(config.tls).model_fields:
        tls = getattr(config.tls, name)
        if tls is None:
            continue
        try:
            read_material(name, tls)
        except ConfigError as error:
            yield from error.problems


def _token(config: Config) -> Iterator[Problem]:
    if config.admin.token_file is not None:
        field = "admin.token_file"
        try:
            read_token(Path(config.admin.token_file))
        except TokenError as error:
            yield Problem("", None, field, str(error).removeprefix(f"{field}: "))


def _decision_log(config: Config, config_path: Path) -> Iterator[Problem]:
    """`serve` makes the folder where it is missing, so the nearest one above it must be writable."""
    folder = config.decision_log_folder(config_path)
    if folder is None or not config.decision_log.share:
        return
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        if not existing.is_dir():
            raise NotADirectoryError(20, "Not a directory")
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        where = "" if existing == folder else f" ({existing})"
        message = (
            f"{folder}{where} cannot be written to: {error.strerror}; let the balancer write there or name another"
        )
        yield Problem(str(config_path), None, "decision_log.folder", message)
