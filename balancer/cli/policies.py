"""`balancer policies`: what there is to choose from."""

import json
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from balancer.config.policy_options import installed_policies, options_model, policy_class
from balancer.kernel.compiled.library import Library, LibraryError
from balancer.kernel.policy_answers import is_shipped
from policies.base import Policy
from policies.traced import traced

_DECIDES = {
    "compiled": "Compiled.",
    "traced": "Traced to a program that the compiled kernel runs.",
    "python": "In NumPy, with a front end that asks the balancer{}.",
}

_EPILOG = """\b
Examples:
  balancer policies
  balancer policies power_of_two
  balancer policies --json | jq '.[].name'

In the config file:

\b
  policy:
    name: power_of_two
    options: {choices: 3}
"""


@click.command(epilog=_EPILOG)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list instead of tables.")
def policies(names: tuple[str, ...], as_json: bool) -> None:
    """List the policies, or those of the given names: what they do, their options, and where they are from."""
    installed = installed_policies()
    try:
        chosen = [_named(name) for name in names] or list(installed.policies.values())
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    library = _library()
    described = [_described(policy, installed.distributions[policy.name], library) for policy in chosen]
    for unavailable in installed.unavailable:
        click.echo(str(unavailable), err=True)
    if as_json:
        click.echo(json.dumps(described, indent=2))
    else:
        _show(described)


def _named(name: str) -> type[Policy]:
    try:
        return policy_class(name)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _library() -> Library | None:
    try:
        return Library()
    except LibraryError as error:
        click.echo(f"no policy is compiled: {error}", err=True)
        return None


def _described(policy: type[Policy], distribution: str, library: Library | None) -> dict[str, Any]:
    properties = options_model(policy).model_json_schema().get("properties", {})
    return {
        "name": policy.name,
        "summary": policy.summary,
        "source": policy.source,
        "distribution": distribution,
        "needs_key": policy.needs_key,
        **_decided(policy(), library),
        "options": [{"name": name, **_option(schema)} for name, schema in properties.items()],
    }


def _decided(policy: Policy, library: Library | None) -> dict[str, str]:
    if library is None:
        return {"decides": "python", "because": ""}
    if library.answers(policy):
        return {"decides": "compiled" if is_shipped(policy) else "traced", "because": ""}
    return {"decides": "python", "because": traced(policy).reason}


def _option(schema: dict[str, Any]) -> dict[str, Any]:
    names = {"minimum": "ge", "exclusiveMinimum": "gt", "maximum": "le", "enum": "allowed"}
    return {
        "type": schema.get("type"),
        **({"default": schema["default"]} if "default" in schema else {"required": True}),
        "doc": schema.get("description", ""),
        **{ours: schema[theirs] for theirs, ours in names.items() if theirs in schema},
    }


def _show(described: list[dict[str, Any]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(ratio=1)
    for policy in described:
        why = f": {policy['because']}" if policy["because"] else ""
        how = f" {_DECIDES[policy['decides']].format(why)}"
        origin = "" if policy["distribution"] == "balancer" else f" (from {policy['distribution']})"
        lines = [f"{policy['summary'].rstrip('.')}.{escape(how)}", f"[dim]{escape(policy['source'] + origin)}[/dim]"]
        for option in policy["options"]:
            default = f"default {json.dumps(option['default'])}" if "default" in option else "required"
            allowed = ", ".join(filter(None, (default, _allowed(option))))
            lines.append(f"[cyan]{option['name']}[/cyan] [dim]({escape(allowed)})[/dim]: {escape(option['doc'])}")
        table.add_row(policy["name"], "\n".join(lines))
        table.add_section()
    Console().print(table)


def _allowed(option: dict[str, Any]) -> str:
    if "allowed" in option:
        return " or ".join(map(str, option["allowed"]))
    signs = {"gt": ">", "ge": "≥", "le": "≤"}
    return " ".join(f"{sign} {option[name]:g}" for name, sign in signs.items() if name in option)
