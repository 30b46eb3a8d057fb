"""The section `fleet` of the config file. The text under a field is its documentation, in `docs/config.md` too."""

from typing import Annotated

from pydantic import Field

from balancer.bootstrap.sections import EnvoySection
from balancer.config.listen import TlsSection
from balancer.files.schema import ConfigFile, StrictModel, field_error, is_local

ANYBODY = "*"
"""In the place of a caller."""


class ControlSection(StrictModel):
    """Who may change the workers by calls: load and unload models, set traces and logs, register shared memory. A
    change goes to all workers, and to those that join later."""

    callers: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = ()
    """Names that Envoy verified by key, token or certificate. `*`: everybody who reaches `envoy.listen`, which must
    then be local. Empty: nobody. Print Envoy's bootstrap anew when you fill or empty it."""
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 300.0
    """Time limit of a change at one worker."""
    file: ConfigFile | None = None
    """File that keeps changes for workers that join later, relative to the config file. null: in memory, with one
    process."""


class FleetSection(StrictModel):
    """Calls about the fleet, answered at `listen.fleet` as one Triton would."""

    ready_workers: int = Field(default=1, ge=1)
    """Workers that must be ready for the server to be."""
    control: ControlSection = ControlSection()
    """Who may change the workers."""


def check_reached(
    control: ControlSection, listen: str | None, envoy: EnvoySection, tls: TlsSection, processes: int
) -> None:
    """PydanticCustomError, of the whole config, where Envoy does not reach `listen.fleet`, or where changes are taken
    of callers that nobody verified."""
    if listen is not None and not envoy.on_this_machine and not envoy.fleet:
        rule = "must name the addresses of listen.fleet where Envoy is on another machine"
        raise field_error(("envoy", "fleet"), envoy.fleet, rule)
    if not control.callers:
        return
    field = ("fleet", "control", "callers")
    if listen is None:
        raise field_error(field, control.callers, "needs listen.fleet, where changes are taken; set it")
    verified = envoy.jwt or envoy.api_keys or (envoy.tls and envoy.tls.client_ca_file)
    if ANYBODY in control.callers and not is_local(envoy.listen):
        rule = "may have * only where envoy.listen is an address of this machine alone; name the callers"
        raise field_error(field, control.callers, rule)
    if ANYBODY not in control.callers and not verified:
        rule = "needs envoy.jwt, envoy.api_keys or envoy.tls.client_ca_file, which say who calls; set one of them"
        raise field_error(field, control.callers, rule)
    if not is_local(listen) and tls.envoy is None:
        rule = "needs tls.envoy where fleet.control has callers: whoever reaches it can name itself one of them"
        raise field_error(("listen", "fleet"), listen, rule)
    if control.file is None and processes > 1:
        rule = "must name a file where processes is not 1: each of them has to know of the others' changes"
        raise field_error(("fleet", "control", "file"), control.file, rule)
