"""`balancer envoy`: Envoy's bootstrap for a config."""

import dataclasses
import shutil
from pathlib import Path

import click

from balancer.bootstrap.bootstrap import BootstrapOptions, render, render_with_secrets, write_secrets
from balancer.config import config as configs
from balancer.config.frontend import AUTO, bootstrap_options
from balancer.errors import OperatorError
from balancer.extproc.endpoints import LastKnown

_EPILOG = """\b
Examples:
  balancer envoy balancer.yaml > envoy.yaml
  envoy -c envoy.yaml
  balancer envoy balancer.yaml --secrets /etc/envoy/secrets > envoy.yaml

What each part of it is for is explained in envoy/README.md and the comments of envoy/bootstrap.yaml.
"""


@click.command(epilog=_EPILOG)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option(
    "--libraries",
    type=click.Path(path_type=Path, file_okay=False),
    help="Copy what Envoy loads to decide by itself into this folder, and have it loaded from there: for an Envoy in "
    "another container, which sees this folder by the same path.",
)
@click.option(
    "--secrets",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write files into this folder through which Envoy reads certificates anew when they are replaced. Without it "
    "Envoy reads them at its start only.",
)
def envoy(file: Path | None, libraries: Path | None, secrets: Path | None) -> None:
    """Print the Envoy bootstrap for the config FILE; without one, for the defaults.

    Listener, TLS, timeouts and the balancer's addresses come from the config's sections envoy, listen and processes.
    """
    config = configs.load(file) if file is not None else configs.Config()
    _have_endpoints(config)
    options = bootstrap_options(config)
    if options.native is not None and libraries is None and config.envoy.frontend == AUTO:
        elsewhere = "for an Envoy in another container or on another machine give --libraries, or set pick"
        click.echo(
            f"envoy.frontend: auto is native here, so Envoy loads {options.native.module}; {elsewhere}", err=True
        )
    if libraries is not None:
        options = _loaded_from(libraries.absolute(), options)
    if secrets is None:
        click.echo(render(options), nl=False)
        return
    bootstrap, files = render_with_secrets(options, secrets.absolute())
    try:
        secrets.mkdir(parents=True, exist_ok=True)
        write_secrets(secrets, files)
    except OSError as error:
        raise OperatorError(f"--secrets: cannot write into {secrets}: {error.strerror}; name another folder") from error
    click.echo(bootstrap, nl=False)


def _have_endpoints(config: configs.Config) -> None:
    """Where Envoy is to find the last known endpoints, it does not start without their files."""
    if (folder := config.endpoints_folder) is None:
        return
    try:
        LastKnown(folder).begin()
    except OSError as error:
        click.echo(
            f"envoy.endpoints_folder: cannot write into {folder}: {error.strerror}; so an Envoy that starts while the "
            "balancer is away has no endpoints: name a folder that outlives a reboot, or null",
            err=True,
        )


def _loaded_from(folder: Path, options: BootstrapOptions) -> BootstrapOptions:
    """With the module and the kernel in `folder`; where Envoy is to load none, as they are."""
    if (native := options.native) is None:
        return options
    try:
        folder.mkdir(parents=True, exist_ok=True)
        module, kernel = (Path(shutil.copy2(library, folder)) for library in (native.module, native.kernel))
    except OSError as error:
        why = error.strerror or error
        raise OperatorError(f"--libraries: cannot write into {folder}: {why}; name another folder") from error
    return dataclasses.replace(options, native=dataclasses.replace(native, module=module, kernel=kernel))
