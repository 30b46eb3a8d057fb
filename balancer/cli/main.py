"""The command line: `balancer COMMAND`. A command's module is imported when the command is used, not before."""

from __future__ import annotations

import importlib
from typing import Any

import click

from balancer.errors import OperatorError

_COMMANDS = {
    "up": ("tools.stack.command", "Start the whole stack on this machine."),
    "serve": ("balancer.commands.serve", "Run the balancer alone."),
    "agent": ("balancer.commands.agent", "Run beside a Triton, and report on it."),
    "drain": ("balancer.commands.drain", "Give a worker nothing new, by hand."),
    "undrain": ("balancer.commands.drain", "Take that back."),
    "check": ("balancer.commands.check", "Validate a config file; what it amounts to, or changes."),
    "top": ("balancer.commands.top", "Watch a balancer's workers, traffic and events."),
    "policies": ("balancer.commands.policies", "List the policies and their options."),
    "envoy": ("balancer.commands.envoy", "Print the Envoy bootstrap for a config."),
    "load": ("tools.load.command", "Drive a listener and measure."),
    "replay": ("simulator.commands.replay", "Decide again what a decision log records."),
    "profile": ("tools.profile.command", "Measure a Triton's service times."),
    "evaluate": ("simulator.commands.evaluate", "Judge policies by a decision log."),
    "simulate": ("simulator.commands.simulate", "Compare policies on simulated fleets."),
    "scenarios": ("simulator.commands.scenarios", "List what there is to simulate."),
    "scoreboard": ("simulator.commands.scoreboard", "All policies on all scenarios, as a page."),
    "train": ("simulator.commands.train", "Train the learned policy in the simulator."),
}
"""By name: the module that holds the command under that name, and its line in the list: listing imports none."""

_EXTRAS = {
    "agent": "agent",
    "up": "stack",
    "load": "stack",
    "profile": "agent",
    "evaluate": "sim",
    "simulate": "sim",
    "scenarios": "sim",
    "scoreboard": "sim",
    "train": "train",
}
"""The optional dependencies that a command needs."""


class LazyGroup(click.Group):
    """A group that imports its commands on demand, and shows errors that the operator can mend as plain messages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of `_COMMANDS`."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name; one that says what to install where a dependency is missing."""
        if cmd_name not in _COMMANDS:
            return None
        try:
            module = importlib.import_module(_COMMANDS[cmd_name][0])
        except ModuleNotFoundError as error:
            return _unavailable(cmd_name, error.name or str(error))
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands in the group's help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        Raises:
            click.ClickException: for an OperatorError, with its message.
        """
        try:
            return super().invoke(ctx)
        except OperatorError as error:
            raise click.ClickException(str(error)) from error


def _unavailable(name: str, missing: str) -> click.Command:
    remedy = f"pip install 'balancer[{_EXTRAS[name]}]'" if name in _EXTRAS else "install the balancer anew"

    def fail() -> None:
        raise click.ClickException(f"{name} needs the Python module {missing}, which is not installed: {remedy}")

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
