"""Who may pass Envoy's listener, and how often: filters before the decision, in either front end.

They stand on the listener that clients reach, never on the internal one. Whoever was let in is named by one header,
which Envoy alone sets: limits count by it and the audit log tells it. A refusal is told as Triton tells an error.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from balancer.balancer_tls import BalancerTls
from balancer.bootstrap import nodes
from balancer.bootstrap.nodes import Node
from balancer.bootstrap.sections import EnvoySection, JwtSection, LocalRateLimitSection, Per
from balancer.bootstrap.tls import Secrets, server_socket
from balancer.errors import OperatorError
from balancer.extproc import names
from balancer.files.schema import join_address
from balancer.files.yaml_document import ConfigError, read_document, read_file

MOST_KEYS = 10_000
_CLIENT = re.compile(r"[A-Za-z0-9._@:/-]{1,128}")
_REMEDY = 'give the JSON that the issuer publishes: {"keys": [...]}'
_KEY = re.compile(r"[\x21-\x7e]{16,256}")


def read_keys(path: Path) -> list[tuple[str, str]]:
    """Clients and their keys, a pair for each key.

    The file is YAML: `client: key`, or `client: [key, key]` while one takes the place of another.

    Raises:
        OperatorError: it cannot be read or used; the message names the client, and never a key.
    """
    content = read_file(path)
    try:
        document = read_document(content, str(path))
    except ConfigError as error:
        # Without its words, which quote the file.
        lines = sorted({problem.line for problem in error.problems if problem.line})
        where = f"{path}:{lines[0]}" if lines else str(path)
        raise OperatorError(f"{where}: is no mapping of clients to keys; write `CLIENT: KEY`, a line each") from None
    if not document.data:
        raise OperatorError(f"{path}: has no key; write `CLIENT: KEY`, a line each")
    pairs = [pair for client, value in document.data.items() for pair in _of_client(path, client, value)]
    if len(pairs) > MOST_KEYS:
        raise OperatorError(f"{path}: {len(pairs)} keys are more than {MOST_KEYS}; use tokens (envoy.jwt) for so many")
    owners: dict[str, str] = {}
    for client, key in pairs:
        if key in owners:
            raise OperatorError(f"{path}: {client} has a key of {owners[key]}; give each key once")
        owners[key] = client
    return pairs


def _of_client(path: Path, client: object, value: object) -> list[tuple[str, str]]:
    if not isinstance(client, str) or not _CLIENT.fullmatch(client):
        rule = "has 1 to 128 letters, digits or . _ @ : / -"
        raise OperatorError(f"{path}: a client's name {rule}; {_named(client)} has not")
    given = value if isinstance(value, list) else [value]
    keys = [key for key in given if isinstance(key, str) and _KEY.fullmatch(key)]
    if not keys or len(keys) < len(given):
        rule = "16 to 256 visible ASCII characters in quotes"
        raise OperatorError(f"{path}: {client} needs a key, or a list of keys, of {rule}; one of its own is none")
    return [(client, key) for key in keys]


def _named(client: object) -> str:
    """Cut: whoever writes the line the wrong way round has a key in the place of a name."""
    return f"the one that begins with {str(client)[:4]!r}"


def read_jwks(path: Path) -> str:
    """The file's content, which Envoy can use.

    Raises:
        OperatorError: it cannot be read or used; the message shows none of it.
    """
    content = read_file(path)
    try:
        keys = json.loads(content)["keys"]
        kinds = [key["kty"] for key in keys]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise OperatorError(f"{path}: is no JWKS; {_REMEDY}") from error
    if not kinds:
        raise OperatorError(f"{path}: has no key; {_REMEDY}")
    if "oct" in kinds:
        rule = "who can verify with it can sign with it too; let the issuer sign with a private key, such as ES256"
        raise OperatorError(f"{path}: a key is symmetric (kty oct): {rule}")
    return content if isinstance(content, str) else content.decode()


NOBODY = "-"
"""In place of a principal or tenant that nobody named, so that requests without share one limit."""
_HEALTH = (
    *("/v2/health/live", "/v2/health/ready", "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"),
    *("/inference.GRPCInferenceService/ServerLive", "/inference.GRPCInferenceService/ServerReady"),
)
_HTTPS = 443
_HTTP = 80


@dataclass(frozen=True, slots=True)
class Access:
    envoy: EnvoySection
    tenant_header: str
    jwks_ca: Path
    named: bool
    """Whether principals are needed for their own sake, other than by the audit log."""

    @property
    def client_certificates(self) -> bool:
        return self.envoy.tls is not None and self.envoy.tls.client_ca_file is not None

    @property
    def counts_by(self) -> set[Per]:
        return {limit.per for limit in (self.envoy.local_rate_limit, self.envoy.rate_limit) if limit is not None}

    @property
    def names_principals(self) -> bool:
        envoy = self.envoy
        return bool(envoy.jwt or envoy.api_keys or envoy.audit_log or self.named or self.counts_by)

    @property
    def names_tenants(self) -> bool:
        """Whether a client's own tenant header is replaced."""
        by_certificate = self.client_certificates and "tenant" in self.counts_by
        return bool(self.envoy.jwt or self.envoy.api_keys or by_certificate)


def guard_listener(bootstrap: Node, access: Access, secrets: Secrets) -> None:
    if not access.names_principals:
        return
    resources = bootstrap["static_resources"]
    manager = nodes.manager_of(resources["listeners"][0])
    nodes.mutations_of(manager)[:0] = _early(access)
    filters = []
    if access.envoy.jwt is not None:
        filters.append(_jwt_filter(access.envoy.jwt, access, secrets))
        if access.envoy.jwt.jwks_url:
            resources["clusters"].append(_jwks_cluster(access.envoy.jwt.jwks_url, access.jwks_ca))
    if access.envoy.api_keys is not None:
        filters.append(_api_keys_filter(Path(access.envoy.api_keys.file), secrets))
        if access.envoy.open_health:
            _leave_health_open(manager)
    filters.append(_principal_filter(access))
    if access.envoy.jwt is not None or access.client_certificates:
        filters.append(_names_filter(access))
    if access.envoy.local_rate_limit is not None:
        filters.append(_local_limit_filter(access.envoy.local_rate_limit, access))
    if access.envoy.rate_limit is not None:
        filters.append(nodes.part("rate_limit", action=_counted(access.envoy.rate_limit.per, access)[1]))
        resources["clusters"].append(nodes.grpc_cluster(names.RATE_LIMIT_CLUSTER, access.envoy.rate_limit.service))
    manager["http_filters"][:0] = filters
    manager["local_reply_config"]["mappers"] += nodes.parts("refusals")


def _early(access: Access) -> list[Node]:
    """Nobody outside says who he is. A certificate was verified before the first byte of the request."""
    mutations: list[Node] = [{"remove": names.PRINCIPAL_HEADER}]
    if access.names_tenants:
        mutations.append({"remove": access.tenant_header})
    if access.client_certificates and access.envoy.jwt is None and access.envoy.api_keys is None:
        mutations += [
            {"append": nodes.header(names.PRINCIPAL_HEADER, f"%DOWNSTREAM_PEER_{part}%", "ADD_IF_ABSENT")}
            for part in ("URI_SAN", "DNS_SAN", "SUBJECT")
        ]
    return mutations


def _jwt_filter(jwt: JwtSection, access: Access, secrets: Secrets) -> Node:
    claims = [{"header_name": names.PRINCIPAL_HEADER, "claim_name": jwt.principal_claim}]
    if jwt.tenant_claim:
        claims.append({"header_name": access.tenant_header, "claim_name": jwt.tenant_claim})
    rules: list[Node] = [{"match": {"path": path}} for path in _HEALTH] if access.envoy.open_health else []
    rules.append({"match": {"prefix": "/"}, "requires": {"provider_name": "issuer"}})
    typed = nodes.part("jwt", issuer=jwt.issuer, audiences=list(jwt.audiences), claims=claims, rules=rules)
    if jwt.jwks_file is not None:
        # Not the file's name: Envoy would read it once only.
        keys = {"local_jwks": {"inline_string": read_jwks(Path(jwt.jwks_file))}}
    else:
        keys = {"remote_jwks": nodes.part("remote_jwks", url=jwt.jwks_url)}
    typed["providers"]["issuer"] |= keys
    return secrets.filter(names.JWT_FILTER, typed)


def _jwks_cluster(address: str, authority: Path) -> Node:
    url = urlsplit(address)
    host, secure = url.hostname or "", url.scheme == "https"
    server = join_address(host, url.port or (_HTTPS if secure else _HTTP))
    cluster = nodes.cluster_of(names.JWKS_CLUSTER, server)
    if secure:
        # Read at the start only: authorities of public sites change over years.
        trust = BalancerTls(authority, host)
        cluster["transport_socket"] = server_socket(trust, Secrets(None), "jwks_authority", "", "http/1.1")
    return cluster


def _api_keys_filter(keys: Path, secrets: Secrets) -> Node:
    config = nodes.part("api_keys", credentials=[{"key": key, "client": client} for client, key in read_keys(keys)])
    return secrets.filter(names.API_KEYS_FILTER, config, "envoy.api_keys")


def _leave_health_open(manager: Node) -> None:
    no_key = {names.API_KEYS_FILTER: nodes.off()}
    for route in nodes.routes_of(manager):
        if route["match"].get("path") in _HEALTH:
            route["typed_per_filter_config"] = route.get("typed_per_filter_config", {}) | no_key


def _principal_filter(access: Access) -> Node:
    mutations = [{"append": nodes.header(names.PRINCIPAL_HEADER, NOBODY, "ADD_IF_ABSENT")}]
    if access.names_tenants:
        from_claim = access.envoy.jwt is not None and access.envoy.jwt.tenant_claim
        tenant = NOBODY if from_claim else f"%REQ({names.PRINCIPAL_HEADER})%"
        mutations.append({"append": nodes.header(access.tenant_header, tenant, "ADD_IF_ABSENT")})
    return nodes.part("principal", mutations=mutations)


def _names_filter(access: Access) -> Node:
    named = (names.PRINCIPAL_HEADER, *([access.tenant_header] if access.names_tenants else []))
    rules = [nodes.part("control_characters", header=header) for header in named]
    return nodes.part("names", rules=rules)


def _counted(per: Per, access: Access) -> tuple[str, Node]:
    if per == "address":
        # Whoever has one address of IPv6 has 2^64.
        return "masked_remote_address", {"masked_remote_address": {"v6_prefix_mask_len": 64}}
    header = names.PRINCIPAL_HEADER if per == "principal" else access.tenant_header
    return per, {"request_headers": {"header_name": header, "descriptor_key": per}}


def _local_limit_filter(limit: LocalRateLimitSection, access: Access) -> Node:
    key, action = _counted(limit.per, access)
    bucket = {
        "max_tokens": limit.requests,
        "tokens_per_fill": limit.requests,
        "fill_interval": f"{limit.every_s:.3f}s",
    }
    return nodes.part("local_rate_limit", key=key, action=action, bucket=bucket)
