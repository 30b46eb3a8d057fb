"""What of a config lets strangers in: listeners beyond this machine whose clients show no certificate."""

from balancer.config.config import Config
from balancer.files.schema import is_local

_HARM = {
    "envoy": "read the fleet, take picks, and forge outcomes so that a worker seems broken",
    "fleet": "name itself any client, and so change workers where fleet.control lets one",
    "gateways": "see which workers there are, and take picks that count as in flight",
    "reports": "report in any worker's name, and so draw requests to it or away from it",
    "admin": "read the fleet, the config and the metrics, though drain no worker",
}


def warnings(config: Config) -> list[str]:
    """One text for each listener that strangers can reach: which, what they could do, and the remedy."""
    found = []
    for name, harm in _HARM.items():
        address = config.listen.fleet_at if name == "fleet" else getattr(config.listen, name)
        section = "envoy" if name == "fleet" else name
        tls = getattr(config.tls, section)
        if address is None or is_local(address) or (tls is not None and tls.client_ca_file is not None):
            continue
        if name == "admin" and config.admin.token_file is not None:
            continue
        other = "admin.token_file, or listen on 127.0.0.1" if name == "admin" else "listen on 127.0.0.1 or unix:"
        found.append(
            f"listen.{name}: {address} is open to other machines without client certificates: whoever reaches it can "
            f"{harm}; set tls.{section} with a client_ca_file, or {other}"
        )
    if not is_local(config.envoy.admin):
        found.append(
            f"envoy.admin: {config.envoy.admin} is open to other machines: whoever reaches it can stop and reconfigure "
            "Envoy; listen on 127.0.0.1"
        )
    return found
