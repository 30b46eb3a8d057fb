"""Opens what `serve` and Envoy would open, beyond the config file itself: the list of workers, certificates, the admin
token, the decision log's folder."""

import dataclasses
import datetime
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from balancer.bootstrap.access import read_jwks, read_keys
from balancer.bootstrap.bootstrap import render_with_secrets
from balancer.config.config import Config
from balancer.config.frontend import bootstrap_options, third_party_policies
from balancer.discovery.cluster.api import MISSING, is_installed
from balancer.discovery.workers import load_workers
from balancer.errors import OperatorError
from balancer.files.schema import shown
from balancer.files.yaml_document import ConfigError, Problem
from balancer.kernel.checked_answer import first_failure
from balancer.server.admin.server import TokenError, read_token
from balancer.server.security.certificates import expiry_warnings, read_fitting, tls_files
from policies.traced import traced

_NO_WORKERS = "until it is, serve knows no worker: put the file there or name another"


def check_files(config: Config, config_path: Path) -> list[str]:
    """Try every file and folder that a balancer with this config would use, and the certificates that its Envoy would.
    Profiles, weights and workers that the config names were read with it.

    Returns:
        What was found and what to mind, a line each.

    Raises:
        ConfigError: with every problem found: field, value, remedy.
    """
    notes: list[str] = []
    now = datetime.datetime.now(datetime.UTC)
    problems = [
        *_discovery(config, config_path, notes),
        *_certificates(config, now, notes),
        *_envoys_certificates(config, now, notes),
        *_credentials(config, notes),
        *_token(config),
        *_decision_log(config, config_path),
    ]
    notes.extend(_policies(config))
    if problems:
        raise ConfigError(problem if problem.line else _in(config_path, problem) for problem in problems)
    return notes


def _policies(config: Config) -> Iterator[str]:
    """What becomes of policies that are not compiled, as `balancer policies` has it, and of those that fail."""
    for field, section in third_party_policies(config):
        policy = section.built
        name = f"{field}: {shown(policy.name)}"
        if failure := first_failure(policy):
            yield f"warning: {name} gives no valid answer: {failure}; mend it, since another decides in its stead"
        elif reason := traced(policy).reason:
            yield f"{name} is not compiled, since {reason}; it decides in NumPy, and Envoy asks the balancer"


def _in(config_path: Path, problem: Problem) -> Problem:
    return dataclasses.replace(problem, source=str(config_path))


def _discovery(config: Config, config_path: Path, notes: list[str]) -> Iterator[Problem]:
    if config.discovery.kubernetes is not None:
        if not is_installed():
            yield Problem("", None, "discovery.kubernetes", MISSING)
        notes.append("warning: discovery.kubernetes: the API is not asked, so neither role nor pods are checked")
    file = config.discovery_file(config_path)
    if file is None:
        return
    if not os.path.exists(file):
        notes.append(f"warning: discovery.file: {file} is not here, so not checked; {_NO_WORKERS}")
        return
    try:
        notes.append(f"{file}: {len(load_workers(file))} workers")
    except ConfigError as error:
        for problem in error.problems:
            whole = problem.line is None
            yield Problem("", None, "discovery.file", f"{file} {problem.message}") if whole else problem


def _certificates(config: Config, now: datetime.datetime, notes: list[str]) -> Iterator[Problem]:
    sections = {f"tls.{name}": tls for name, tls in config.tls} | {"peers.tls": config.peers.tls}
    for name, tls in sections.items():
        if tls is not None:
            yield from _fit_and_valid(name, tls_files(tls), now, notes)


def _envoys_certificates(config: Config, now: datetime.datetime, notes: list[str]) -> Iterator[Problem]:
    """Envoy may have a machine of its own, and a relative path is from the folder where Envoy is started."""
    envoy = config.envoy
    sections = {
        "tls": envoy.tls,
        "balancer_tls": envoy.balancer_tls,
        "triton_tls": envoy.triton_tls,
        "openai_tls": envoy.openai_tls,
    }
    for name, tls in sections.items():
        if tls is None:
            continue
        files = tls_files(tls)
        for field, file in list(files.items()):
            relative = not Path(file).is_absolute()
            if (relative or not config.envoy.on_this_machine) and not os.path.exists(file):
                remedy = "give an absolute path" if relative else "check it where Envoy runs"
                notes.append(f"warning: envoy.{name}.{field}: {file} is not here, so not checked; {remedy}")
                del files[field]
        yield from _fit_and_valid(f"envoy.{name}", files, now, notes)


def _fit_and_valid(
    section: str, files: Mapping[str, str], now: datetime.datetime, notes: list[str]
) -> Iterator[Problem]:
    try:
        contents = read_fitting(section, files)
    except ConfigError as error:
        yield from error.problems
        return
    for useless, field, message in expiry_warnings(section, files, contents, now):
        if useless:
            yield Problem("", None, field, message)
        else:
            notes.append(f"warning: {field}: {message}")


def _credentials(config: Config, notes: list[str]) -> Iterator[Problem]:
    """What `balancer envoy` reads to write what Envoy reads, maybe on another machine."""
    keys, jwt = config.envoy.api_keys, config.envoy.jwt
    for field, file, read in (
        ("envoy.api_keys.file", keys and keys.file, read_keys),
        ("envoy.jwt.jwks_file", jwt and jwt.jwks_file, read_jwks),
    ):
        if not file:
            continue
        if not os.path.exists(file):
            notes.append(f"warning: {field}: {file} is not here, so not checked; `balancer envoy` needs it")
            continue
        try:
            read(Path(file))
        except OperatorError as error:
            yield Problem("", None, field, str(error))
            return
    if config.envoy.overlay is not None:
        try:
            render_with_secrets(bootstrap_options(config), Path("/"))
        except ConfigError as error:
            yield from error.problems
        except OperatorError:
            notes.append("warning: envoy.overlay: not checked, as a file that the bootstrap needs is not here")


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
