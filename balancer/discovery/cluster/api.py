"""Objects of one kind in one namespace at the Kubernetes API, by the official client: pages of a list, and the events
of a watch.

The client does addresses, TLS, tokens and HTTP (14 MiB, 0.25 s to import). What comes is read here as plain JSON, in
bounded pieces: the client's own models take 21 MiB and 0.8 s more. Calls block: for a thread.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts/ (lists in chunks, watches, bookmarks, 410).
"""

import contextlib
import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Cause = Literal["unreachable", "unauthorized", "forbidden", "absent", "expired", "server", "invalid", "config"]
"""`absent`: the cluster does not know the kind."""

MISSING = "needs the package `kubernetes`: pip install 'balancer[kubernetes]'"
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
MAX_SELECTOR_CHARACTERS = 1024
"""Of a selector of labels; it travels in the address of each request."""
_PAGE_OBJECTS = 20
"""Decoding a page holds up the event loop, so pages are small: some 2 ms."""
_MAX_PAGE_BYTES = 32 * 2**20
"""As much as `_PAGE_OBJECTS` of the largest objects that the API server stores."""
_MAX_EVENT_BYTES = 4 * 2**20
_MAX_REFUSAL_BYTES = 2**16
_PIECE_BYTES = 2**16
_CONNECT_S = 5.0
_LIST_S = 15.0
_WATCH_S = 240
_SILENCE_S = 150.0
"""Bookmarks come once a minute, so a watch that is silent for longer is dead."""


class ApiError(Exception):
    """The API cannot be used, in words for the log."""

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.cause: Cause = cause


@dataclass(frozen=True, slots=True)
class Resource:
    version: str
    plural: str
    remedy: str = ""
    """What to do where a cluster does not know it."""

    @property
    def path(self) -> str:
        return f"/{'apis' if '/' in self.version else 'api'}/{self.version}/namespaces/{{namespace}}/{self.plural}"

    @property
    def full_name(self) -> str:
        group = self.version.rpartition("/")[0]
        return f"{self.plural}.{group}" if group else self.plural


PODS = Resource("v1", "pods")


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    label_selector: str
    """Empty: with any labels."""
    namespace: str | None = None
    """None: the one of the credentials."""
    kubeconfig: Path | None = None
    """None: the service account of the pod that this runs in."""
    resource: Resource = PODS
    name: str = ""
    """Of the only object that is wanted; empty: all."""

    @property
    def selectors(self) -> list[tuple[str, str]]:
        by_label = [("labelSelector", self.label_selector)] if self.label_selector else []
        return [*by_label, ("fieldSelector", f"metadata.name={self.name}")] if self.name else by_label


@dataclass(frozen=True, slots=True)
class ListPage:
    objects: list[Any]
    version: str
    more: bool


@dataclass(frozen=True, slots=True)
class WatchEvent:
    kind: str
    """`ADDED`, `MODIFIED`, `DELETED` or `BOOKMARK`."""
    object: Mapping[str, Any]
    version: str


def is_installed() -> bool:
    return importlib.util.find_spec("kubernetes") is not None


class ObjectApi:
    """A connection to the API; made anew after a failure, which reads all credentials again."""

    def __init__(self, access: ClusterAccess) -> None:
        """Reads credentials, not the network.

        Raises:
            ApiError: there are none, or the client is not installed.
        """
        self._access = access
        self._client, self.namespace = _connect(access)
        self._response: Any = None
        self._is_cut = False

    def pages(self) -> Iterator[ListPage]:
        """The objects as they are now.

        Raises:
            ApiError: the API is away or refuses.
        """
        token = ""
        while True:
            query = [("limit", str(_PAGE_OBJECTS))] + ([("continue", token)] if token else [])
            with self._get(query, _LIST_S) as response, _in_words():
                body = response.read(_MAX_PAGE_BYTES + 1)
            if len(body) > _MAX_PAGE_BYTES:
                raise ApiError("invalid", f"the API server sent a page of more than {_MAX_PAGE_BYTES} bytes")
            found = _json(body)
            metadata = _mapping(found.get("metadata"))
            objects, token = found.get("items") or [], metadata.get("continue") or ""
            if not isinstance(objects, list) or not isinstance(token, str):
                raise ApiError("invalid", "the API server sent a list without items")
            yield ListPage(objects, _version(metadata), bool(token))
            if not token:
                return

    def events(self, version: str, opened: Callable[[], None]) -> Iterator[WatchEvent]:
        """What happens after `version`, until the server ends the watch, which it does after some minutes; `opened` is
        called once it watches.

        Raises:
            ApiError: the API is away or refuses; cause `expired`: `version` is too old, list anew.
        """
        watch = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(_WATCH_S)}
        with self._get([*watch.items(), ("resourceVersion", version)], _SILENCE_S) as response:
            opened()
            for line in _lines(response):
                yield _event(_json(line))

    def cut(self) -> None:
        """Let what is being read end at once, and what is begun later. From any thread, and more than once."""
        self._is_cut = True
        response = self._response
        if response is not None:
            # It may end by itself at this moment.
            with contextlib.suppress(ValueError, RuntimeError, OSError, AttributeError):
                response.shutdown()

    def close(self) -> None:
        self._client.close()

    @contextlib.contextmanager
    def _get(self, query: list[tuple[str, str]], read_s: float) -> Iterator[Any]:
        with _in_words():
            request = self._client.param_serialize(
                "GET",
                self._access.resource.path,
                path_params={"namespace": self.namespace},
                query_params=[*self._access.selectors, *query],
                header_params={"Accept": "application/json"},
                auth_settings=["BearerToken"],
            )
            response = self._client.call_api(*request, _request_timeout=(_CONNECT_S, read_s)).response
        # In this order, and `cut` in the other: one of the two sees what the other did.
        self._response = response
        try:
            if self._is_cut:
                raise ApiError("unreachable", "it is no longer asked")
            if response.status != 200:
                with _in_words():
                    body = response.read(_MAX_REFUSAL_BYTES)
                    raise _refusal(response.status, body, self._access.resource, self.namespace)
            yield response
        finally:
            self._response = None
            response.close()


def _connect(access: ClusterAccess) -> tuple[Any, str]:
    if not is_installed():
        raise ApiError("config", MISSING)
    with _in_words():
        # Heavy (14 MiB, 0.25 s), and an optional part.
        from kubernetes import config  # noqa: PLC0415
        from kubernetes.client.api_client import ApiClient  # noqa: PLC0415
        from kubernetes.client.configuration import Configuration  # noqa: PLC0415

        settings = Configuration()
        # Neither redirects nor tries again: whoever calls does, more and more slowly.
        settings.retries = False
        settings.keep_alive = True
        namespace = access.namespace
        if access.kubeconfig is None:
            config.load_incluster_config(client_configuration=settings)
            namespace = namespace or NAMESPACE_FILE.read_text(encoding="utf-8").strip()
        else:
            file = str(access.kubeconfig)
            config.load_kube_config(config_file=file, client_configuration=settings, persist_config=False)
            context = config.list_kube_config_contexts(config_file=file)[1]["context"]
            namespace = namespace or context.get("namespace") or "default"
        return ApiClient(settings), namespace


@contextlib.contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except ApiError:
        raise
    except Exception as error:  # the client, its plug-ins and urllib3 raise whatever they like
        name = type(error).__name__
        cause: Cause = "config" if "Config" in name else "unreachable"
        raise ApiError(cause, f"{name}: {error}".replace("\n", " ")[:300]) from error


def _refusal(status: int, body: bytes, resource: Resource, namespace: str) -> ApiError:
    if status == 401:
        return ApiError("unauthorized", "401: the API server does not know the credentials; it is asked again with new")
    if status == 403:
        name = resource.full_name
        rule = f"bind a role with get, list and watch on {name} (templates/rbac.yaml of deploy/chart)"
        return ApiError("forbidden", f"403: may not list and watch {name} in namespace {namespace}; {rule}")
    if status == 404 and resource.remedy:
        known = f"404: the cluster does not know {resource.full_name} in version {resource.version.rpartition('/')[2]}"
        return ApiError("absent", f"{known}; {resource.remedy}")
    if status == 410:
        return ApiError("expired", "410: the resource version is too old")
    return ApiError("server", f"HTTP status {status}: {body[:200]!r}")


def _lines(response: Any) -> Iterator[bytes]:
    begun = bytearray()
    with _in_words():
        for piece in response.stream(_PIECE_BYTES):
            *ended, rest = piece.split(b"\n")
            if ended:
                ended[0] = bytes(begun) + ended[0]
                begun.clear()
                yield from filter(None, ended)
            begun += rest
            if len(begun) > _MAX_EVENT_BYTES:
                raise ApiError("invalid", f"the API server sent an event of more than {_MAX_EVENT_BYTES} bytes")


def _event(found: Mapping[str, Any]) -> WatchEvent:
    kind, about = found.get("type"), _mapping(found.get("object"))
    if kind == "ERROR":
        if about.get("code") == 410:
            raise ApiError("expired", "410: the resource version is too old")
        raise ApiError("server", f"the watch ended: {about.get('code')} {str(about.get('message'))[:200]!r}")
    if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
        raise ApiError("invalid", f"the watch sent an event of type {str(kind)[:40]!r}")
    return WatchEvent(kind, about, _version(_mapping(about.get("metadata"))))


def _version(metadata: Mapping[str, Any]) -> str:
    version = metadata.get("resourceVersion")
    if not isinstance(version, str) or not 0 < len(version) <= 128:
        raise ApiError("invalid", "the API server sent no resource version")
    return version


def _json(text: bytes) -> Mapping[str, Any]:
    try:
        return _mapping(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ApiError("invalid", f"what answers is no Kubernetes API server: {error}"[:200]) from error


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ApiError("invalid", "what answers is no Kubernetes API server: it sent no JSON object")
    return value
