"""The command line: `balancer COMMAND`. A command's module is imported when the command is used, not before."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from balancer.errors import OperatorError

_COMMANDS = {
    "up": ("balancer.stack.command", "Start the whole stack on this machine."),
    "serve": ("balancer.cli.serve", "Run the balancer alone."),
    "agent": ("balancer.cli.agent", "Run beside a Triton, and report on it."),
    "relay": ("balancer.cli.relay", "Take a rack's reports to all balancers."),
    "ingress": ("balancer.ingress.command", "Serve the requests of a topic, and write their answers to another."),
    "drain": ("balancer.cli.drain", "Give a worker nothing new, by hand."),
    "undrain": ("balancer.cli.drain", "Take that back."),
    "check": ("balancer.cli.check", "Validate a config file; what it amounts to, or changes."),
    "top": ("balancer.cli.top", "Watch a balancer's workers, traffic and events."),
    "policies": ("balancer.cli.policies", "List the policies and their options."),
    "envoy": ("balancer.cli.envoy", "Print the Envoy bootstrap for a config."),
    "load": ("balancer.load.command", "Drive a listener and measure."),
    "replay": ("simulator.commands.replay", "Decide again what a decision log records."),
    "profile": ("balancer.profile.command", "Measure a Triton's service times."),
    "evaluate": ("simulator.commands.evaluate", "Judge policies by a decision log."),
    "twin": ("simulator.commands.twin", "Simulate a decision log's own fleet, and check that."),
    "simulate": ("simulator.commands.simulate", "Compare policies on simulated fleets."),
    "scenarios": ("simulator.commands.scenarios", "List what there is to simulate."),
    "scoreboard": ("simulator.commands.scoreboard", "All policies on all scenarios, as a page."),
    "train": ("simulator.commands.train", "Train the learned policy in the simulator."),
    "learn": ("balancer.learn.command", "Train on a running balancer's log, week after week."),
}
"""By name: the module that holds the command under that name, and its line in the list: listing imports none."""

_EXTRAS = {
    "up": "stack",
    "load": "stack",
    "agent": "agent",
    "profile": "stack",
    "ingress": "ingress",
    "replay": "sim",
    "evaluate": "sim",
    "twin": "sim",
    "simulate": "sim",
    "scenarios": "sim",
    "scoreboard": "sim",
    "train": "train",
    "learn": "train",
}
_EXTRAS_OF_MODULES = {"ray": "ray", "kubernetes": "kubernetes"}
_OURS = ("balancer", "policies", "simulator")


class LazyGroup(click.Group):
    """A group that imports its commands on demand, and shows errors that the operator can mend as plain messages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name; one that says what to install where a dependency is missing."""
        if cmd_name not in _COMMANDS:
            return None
        try:
            with _naming_what_to_install(cmd_name):
                command: click.Command = getattr(importlib.import_module(_COMMANDS[cmd_name][0]), cmd_name)
        except click.ClickException as error:
            return _unavailable(cmd_name, error)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; where there is no such command, with the one that was meant."""
        name = args[0]
        if name not in _COMMANDS and not name.startswith("-"):
            close = difflib.get_close_matches(name, _COMMANDS, n=1)
            meant = f"did you mean {close[0]}?" if close else "balancer --help lists all"
            ctx.fail(f"there is no command {name!r}; {meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        Raises:
            click.ClickException: for an OperatorError, with its message, and where a dependency is missing.
        """
        try:
            with _naming_what_to_install(ctx):
                return super().invoke(ctx)
        except OperatorError as error:
            raise click.ClickException(str(error)) from error


@contextmanager
def _naming_what_to_install(command: str | click.Context) -> Iterator[None]:
    """Raises `click.ClickException` in place of what a missing dependency of the command, or of the one that a context
    invoked, raises: packages put errors of their own around it.
    """
    try:
        yield
    except Exception as error:
        name = command if isinstance(command, str) else command.invoked_subcommand or ""
        missing = _missing_module(error)
        extra = _EXTRAS_OF_MODULES.get(missing) or _EXTRAS.get(name)
        # Without an extra, a command that has begun has a bug.
        if not missing or (extra is None and not isinstance(command, str)):
            raise
        remedy = "install the balancer anew" if extra is None else f"pip install 'balancer[{extra}]'"
        raise click.ClickException(
            f"{name} needs the Python module {missing}, which is not installed: {remedy}"
        ) from error


def _missing_module(error: BaseException | None) -> str:
    """The package that an error, or what brought it about, says is missing; empty: none, or one of ours."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError):
            name = (error.name or "").partition(".")[0]
            return "" if name in _OURS else name
        error = error.__cause__
    return ""


def _unavailable(name: str, error: click.ClickException) -> click.Command:
    def fail() -> None:
        raise error

    return click.Command(
        name,
        callback=fail,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  balancer up                                everything on this machine, requests to port 8080
  balancer check balancer.yaml               is this config good, and what does it amount to?
  balancer top                               what it does now, each second
  balancer envoy balancer.yaml > envoy.yaml  Envoy's bootstrap for it
  balancer serve --config balancer.yaml      the balancer alone
  balancer load --model digits --rate 100    send requests to port 8080
  balancer simulate --scenario stale-reports compare policies without a fleet
""",
)
@click.version_option(package_name="balancer")
def main() -> None:
    """Load balancer for Triton inference fleets.

    Envoy takes the requests and asks the balancer which worker serves each; the balancer knows the workers by the
    reports of the agents beside them.
    """
