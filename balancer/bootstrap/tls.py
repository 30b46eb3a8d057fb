"""TLS in Envoy's bootstrap: certificates by their files, or by files that tell Envoy to read them anew (SDS)."""

from pathlib import Path

from balancer.balancer_tls import BalancerTls
from balancer.bootstrap.nodes import Node
from balancer.bootstrap.sections import EnvoyTlsSection, OpenAITlsSection, ServerTrustSection, TritonTlsSection
from balancer.errors import OperatorError
from balancer.extproc.names import GRPC_CLUSTER, HTTP_CLUSTER, OPENAI_CLUSTER, TLS_SOCKET, TLS_TYPE

_FILTER_OF_FILE_TYPE = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"


class Secrets:
    """Certificates and authorities as Envoy's TLS contexts name them.

    Without a folder Envoy reads each file once, at its start. With one, a context names a file of that folder, which
    names the certificate's files: Envoy then watches their folder, and reads them anew when one is moved into it.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self.files: dict[str, Node] = {}
        """What the folder must hold, by file name."""

    def certificate(self, name: str, chain: Path, key: Path) -> Node:
        content = {"certificate_chain": _file(chain), "private_key": _file(key)}
        if self._folder is None:
            return {"tls_certificates": [content]}
        return {"tls_certificate_sds_secret_configs": [self._watched(name, "tls_certificate", content, chain)]}

    def authority(self, name: str, ca: Path, names: list[Node]) -> Node:
        """The part of a context that trusts this authority, and of its certificates those that match `names`."""
        rules = {"match_typed_subject_alt_names": names} if names else {}
        content = {"trusted_ca": _file(ca)}
        if self._folder is None:
            return {"validation_context": content | rules}
        watched = self._watched(name, "validation_context", content, ca)
        return {
            "combined_validation_context": {
                "default_validation_context": rules,
                "validation_context_sds_secret_config": watched,
            }
        }

    def filter(self, name: str, config: Node, secret: str = "") -> Node:
        """An HTTP filter that Envoy takes anew when its file in the folder is replaced.

        Args:
            name: The filter's.
            config: Its typed config.
            secret: The field of the config for whose sake it must not stand in the bootstrap; empty: it may.

        Raises:
            OperatorError: it must not, and there is no folder.
        """
        if self._folder is None:
            if secret:
                raise OperatorError(f"{secret}: no key stands in a bootstrap; name a folder for them with --secrets")
            return {"name": name, "typed_config": config}
        content = {"@type": _FILTER_OF_FILE_TYPE, "name": name, "typed_config": config}
        self.files[f"{name}.yaml"] = {"resources": [content]}
        source = {"path_config_source": {"path": str(self._folder / f"{name}.yaml")}, "resource_api_version": "V3"}
        types = [config["@type"]]
        return {"name": name, "config_discovery": {"config_source": source, "type_urls": types}}

    def _watched(self, name: str, kind: str, content: Node, file: Path) -> Node:
        assert self._folder is not None
        secret = {
            "@type": f"{TLS_TYPE}Secret",
            "name": name,
            kind: content | {"watched_directory": {"path": str(file.parent)}},
        }
        self.files[f"{name}.yaml"] = {"resources": [secret]}
        source = {"path_config_source": {"path": str(self._folder / f"{name}.yaml")}, "resource_api_version": "V3"}
        return {"name": name, "sds_config": source}


def listener_socket(tls: EnvoyTlsSection, secrets: Secrets) -> Node:
    context = secrets.certificate("listener_certificate", Path(tls.cert_file), Path(tls.key_file))
    context["alpn_protocols"] = ["h2", "http/1.1"]
    socket: Node = {"@type": f"{TLS_TYPE}DownstreamTlsContext", "common_tls_context": context}
    if tls.client_ca_file is not None:
        context |= secrets.authority("client_authority", Path(tls.client_ca_file), [])
        socket["require_client_certificate"] = True
    return {"name": TLS_SOCKET, "typed_config": socket}


def server_socket(tls: BalancerTls, secrets: Secrets, authority: str, certificate: str, protocol: str = "h2") -> Node:
    """The transport socket of a cluster of servers that must have `tls.server_name`, which is sent as SNI too.

    Args:
        tls: What is trusted and shown.
        secrets: Takes the files.
        authority: Name for what is trusted.
        certificate: Name for what is shown.
        protocol: ALPN's name; gRPC servers insist on theirs.
    """
    names = [{"san_type": "DNS", "matcher": {"exact": tls.server_name}}]
    context = secrets.authority(authority, tls.ca, names)
    context["alpn_protocols"] = [protocol]
    if tls.certificate is not None and tls.private_key is not None:
        context |= secrets.certificate(certificate, tls.certificate, tls.private_key)
    typed = {"@type": f"{TLS_TYPE}UpstreamTlsContext", "sni": tls.server_name, "common_tls_context": context}
    return {"name": TLS_SOCKET, "typed_config": typed}


def balancer_socket(tls: BalancerTls, secrets: Secrets, protocol: str = "h2") -> Node:
    return server_socket(tls, secrets, "balancer_authority", "gateway_certificate", protocol)


def worker_sockets(
    triton: TritonTlsSection | None, openai: OpenAITlsSection | None, secrets: Secrets
) -> dict[str, Node]:
    """By cluster, of those that go by TLS."""
    of: dict[str, tuple[ServerTrustSection | None, str, str]]
    of = {GRPC_CLUSTER: (triton, "triton", "h2"), OPENAI_CLUSTER: (openai, "openai", "http/1.1")}
    if triton is not None and triton.rest:
        of[HTTP_CLUSTER] = triton, "triton", "http/1.1"
    return {
        cluster: server_socket(tls.trust(), secrets, f"{name}_authority", f"{name}_client_certificate", protocol)
        for cluster, (tls, name, protocol) in of.items()
        if tls is not None
    }


def _file(path: Path) -> Node:
    return {"filename": str(path)}
