"""What the simulator's commands share: policies and scenarios as users spell them, progress, and the command itself."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any, TypeVar

import click
import yaml
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from balancer.config.policy_options import (
    build_policy,
    installed_policies,
    options_model,
    policy_class,
    read_policy_file,
)
from balancer.files.schema import validate
from balancer.files.yaml_document import Document
from policies.base import Policy
from simulator.pool import TaskPool, pool_of
from simulator.scenario import Scenario, load_scenario

Command = TypeVar("Command", bound=Callable[..., Any])
_PLAIN_WIDTH = 150

RAY = click.option("--ray", metavar="ADDRESS", help="On this Ray cluster instead; local: start one here.")


def places(otherwise: int = 1) -> Callable[[Command], Command]:
    """`--jobs` and `--ray`: where runs are played; in so many processes where neither is given."""

    def add(command: Command) -> Command:
        processes = f"Processes  [default: {otherwise}]"
        return click.option("--jobs", type=click.IntRange(min=1), help=processes)(RAY(command))

    return add


def pool(ray: str | None, jobs: int | None, otherwise: int = 1) -> TaskPool:
    """What `--ray` and `--jobs` say; `otherwise`: processes where neither does."""
    if ray and jobs:
        raise click.UsageError("--jobs and --ray are given: a Ray cluster knows its CPUs, so leave --jobs out")
    return pool_of(ray, jobs or otherwise)


@contextmanager
def shown_pool(ray: str | None, jobs: int | None, otherwise: int, runs: int) -> Iterator[TaskPool]:
    """As `pool`, with a bar that shows how many of the runs are done, and the time left."""
    with pool(ray, jobs, otherwise) as made, progress_bar(console(), runs, "runs") as advance:
        made.progress = lambda done, total: advance(1)
        yield made


def policy_option(name: str, about: str, **more: Any) -> Callable[[Command], Command]:
    """`--policy`, for the parameter `name`; see `parse_policy`."""
    return click.option("--policy", name, metavar="NAME[:option=value,...]", help=about, **more)


def file_option(option: str, about: str) -> Callable[[Command], Command]:
    """A file to write, for the parameter of the option's name with `_path` behind it."""
    name = option.removeprefix("--")
    return click.option(option, f"{name}_path", type=click.Path(dir_okay=False, path_type=Path), help=about)


def console() -> Console:
    """One that is wide enough for the tables where it is a file or a pipe, whose width nobody knows."""
    made = Console()
    return made if made.is_terminal else Console(width=_PLAIN_WIDTH)


def all_policies() -> dict[str, Policy]:
    """Every installed policy that needs no option, with its defaults."""
    return {
        name: build_policy(name, {})
        for name, policy in installed_policies().policies.items()
        if not any(field.is_required() for field in options_model(policy).model_fields.values())
    }


def profile_option() -> Callable[[Any], Any]:
    return click.option(
        "--profile",
        "profiles",
        type=click.Path(path_type=Path, dir_okay=False),
        multiple=True,
        help="Service times of a device kind (balancer profile), which go before the log's; repeat.",
    )


def check_folder(option: str, path: Path | None) -> None:
    """Before a long run, rather than after it: raise `click.UsageError` where the file's folder is not there."""
    if path is not None and not path.parent.is_dir():
        raise click.UsageError(f"{option} {path}: the folder {path.parent} does not exist; make it, or name another")


def parse_policy(text: str) -> Policy:
    """`name` or `name:option=value,option=value`.

    Raises:
        ConfigError: an option does not fit; named with its value and the remedy.
        click.BadParameter: there is no such policy, or the text is not of that form.
    """
    name, _, listed = text.partition(":")
    try:
        policy = policy_class(name)
    except ValueError as error:
        raise click.BadParameter(f"{name!r}: {error}", param_hint="--policy") from error
    options = assigned(filter(None, listed.split(",")), "--policy", "option=value, such as choices=3")
    checked = validate(options_model(policy), Document(text, options))
    try:
        return policy(**dict(checked)).with_files(read_policy_file)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--policy") from error


def assigned(texts: Iterable[str], option: str, form: str) -> dict[str, Any]:
    """`name=value` each, the values as in YAML, for an option of a command; raises `click.BadParameter`."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} must be {form}", param_hint=option)
        found[name.strip()] = yaml.safe_load(value)
    return found


def load_scenarios(names: Sequence[str], load: float | None = None) -> tuple[Scenario, ...]:
    """The scenarios by name or path; a closed loop ignores the load.

    Raises:
        click.ClickException: two have one name, or one refuses the load.
        OperatorError: there is no such scenario, or its file does not fit.
    """
    found = tuple(load_scenario(name) for name in names)
    twice = {scenario.name for scenario in found if sum(other.name == scenario.name for other in found) > 1}
    if twice:
        raise click.BadParameter(f"{', '.join(sorted(twice))} is given twice: drop one", param_hint="--scenario")
    try:
        for scenario in found:
            if load is not None and not scenario.workload.clients:
                scenario.with_load(load)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    return found


def pick_baseline(wanted: str | None, policies: Sequence[str], default: str) -> str:
    """The policy that others are compared to.

    Raises:
        click.BadParameter: it is not among the policies compared.
    """
    if wanted is None:
        return default if default in policies else policies[0]
    if wanted not in policies:
        raise click.BadParameter(
            f"{wanted!r} is not compared here: add --policy {wanted}, or name one of {', '.join(policies)}",
            param_hint="--baseline",
        )
    return wanted


_SILENCE_S = 5.0
_COMPILING = "The simulator is being compiled, each policy at its first run: up to a minute each, and then it is kept."


@contextmanager
def progress_bar(shown_on: Console, total: int, what: str = "requests") -> Iterator[Callable[[int], None]]:
    """A bar over all of them, with the time left, on a terminal; gives the function that advances it.

    Says what takes so long where nothing is done after some seconds.
    """
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    patience = Timer(_SILENCE_S, lambda: click.echo(_COMPILING, err=True))
    patience.daemon = True
    with Progress(*columns, console=shown_on, transient=True, disable=not shown_on.is_terminal) as bar:
        task = bar.add_task(what, total=total)

        def advance(count: int) -> None:
            patience.cancel()
            bar.advance(task, count)

        patience.start()
        try:
            yield advance
        finally:
            patience.cancel()


def typed_command() -> str:
    """The command that is running, with the options that were given: what a reader runs to get the same."""
    context = click.get_current_context()
    words = ["balancer", context.info_name or ""]
    for parameter in context.command.params:
        name = parameter.name or ""
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        value = context.params[name]
        if isinstance(value, bool):
            words.append(parameter.opts[0] if value else parameter.secondary_opts[0])
            continue
        for each in value if isinstance(value, tuple) else (value,):
            words += [parameter.opts[0], str(each)]
    return shlex.join(words)
