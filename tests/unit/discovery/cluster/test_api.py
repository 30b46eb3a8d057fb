"""The official client against servers that answer badly: each is an error in words, within bounds."""

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from balancer.discovery.cluster import api as pods_api
from balancer.discovery.cluster.api import ApiError, ClusterAccess, ObjectApi

pytest.importorskip(
    "kubernetes", reason="the package `kubernetes` is not installed: pip install 'balancer[kubernetes]'"
)

Respond = Callable[[http.server.BaseHTTPRequestHandler], None]


@contextlib.contextmanager
def served(respond: Respond, folder: Path) -> Iterator[ObjectApi]:
    """The client of a server that answers every GET by `respond`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            with contextlib.suppress(ConnectionError):
                respond(self)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    api = client(server.server_port, folder)
    try:
        yield api
    finally:
        api.cut()
        api.close()
        server.shutdown()
        thread.join()
        server.server_close()


def client(port: int, folder: Path) -> ObjectApi:
    found = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "secret-token"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(found))
    return ObjectApi(ClusterAccess("app=triton", kubeconfig=folder / "kubeconfig"))


def whole(status: int, body: bytes, **headers: str) -> Respond:
    def respond(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return respond


def pieces(*chunks: bytes, hangs: threading.Event | None = None) -> Respond:
    def respond(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for chunk in chunks:
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        if hangs is not None:
            hangs.wait()
        handler.wfile.write(b"0\r\n\r\n")

    return respond


def event(kind: str, version: str, **more: object) -> bytes:
    return json.dumps({"type": kind, "object": {"metadata": {"resourceVersion": version}, **more}}).encode() + b"\n"


def refused_list(respond: Respond, folder: Path) -> ApiError:
    with served(respond, folder) as api, pytest.raises(ApiError) as caught:
        list(api.pages())
    return caught.value


def refused_watch(respond: Respond, folder: Path) -> ApiError:
    with served(respond, folder) as api, pytest.raises(ApiError) as caught:
        list(api.events("1", lambda: None))
    return caught.value


@pytest.mark.parametrize(
    ("status", "body", "cause", "words"),
    [
        (200, b"<html>", "invalid", "what answers is no Kubernetes API server"),
        (200, b"[]", "invalid", "it sent no JSON object"),
        (200, b"[" * 100_000, "invalid", "what answers is no Kubernetes API server"),
        (200, b'{"metadata": {"resourceVersion": "1"}, "items": {"a": 1}}', "invalid", "a list without items"),
        (200, b'{"metadata": {"resourceVersion": 1}, "items": []}', "invalid", "no resource version"),
        (200, b'{"metadata": {"resourceVersion": "1", "continue": 2}}', "invalid", "a list without items"),
        (401, b"", "unauthorized", "401: the API server does not know the credentials"),
        (403, b"", "forbidden", "namespace default; bind a role with get, list and watch on pods"),
        (410, b"", "expired", "410"),
        (503, b"busy\n" * 1000, "server", "HTTP status 503: b'busy"),
    ],
)
def test_lists_that_are_none(status: int, body: bytes, cause: str, words: str, tmp_path: Path) -> None:
    error = refused_list(whole(status, body), tmp_path)
    assert error.cause == cause
    assert words in str(error)
    assert len(str(error)) < 400
    assert "\n" not in str(error)
    assert "secret-token" not in str(error)


def test_redirects_are_not_followed(tmp_path: Path) -> None:
    error = refused_list(whole(302, b"", Location="http://169.254.169.254/"), tmp_path)
    assert (error.cause, str(error)) == ("server", "HTTP status 302: b''")


def test_nobody_listens(tmp_path: Path) -> None:
    with served(whole(200, b"{}"), tmp_path):
        pass
    address = yaml.safe_load((tmp_path / "kubeconfig").read_text())["clusters"][0]["cluster"]["server"]
    with pytest.raises(ApiError) as caught:
        list(client(int(address.rpartition(":")[2]), tmp_path).pages())
    assert caught.value.cause == "unreachable"


def test_a_page_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods_api, "_MAX_PAGE_BYTES", 1000)
    assert "a page of more than 1000 bytes" in str(refused_list(whole(200, b" " * 1001), tmp_path))


def test_an_event_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods_api, "_MAX_EVENT_BYTES", 1000)
    assert "an event of more than 1000 bytes" in str(refused_watch(pieces(b" " * 600, b" " * 600), tmp_path))


def test_events_come_whole_however_they_are_cut(tmp_path: Path) -> None:
    text = event("ADDED", "2") + b"\n" + event("BOOKMARK", "3") + event("DELETED", "4")
    for size in (1, 7, len(text)):
        respond = pieces(*(text[start : start + size] for start in range(0, len(text), size)))
        with served(respond, tmp_path) as api:
            found = [(each.kind, each.version) for each in api.events("1", lambda: None)]
        assert found == [("ADDED", "2"), ("BOOKMARK", "3"), ("DELETED", "4")]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (event("ERROR", "1", code=410), "expired"),
        (event("ERROR", "1", code=500, message="x" * 1000), "server"),
        (event("ODD", "1"), "invalid"),
        (event("ADDED", ""), "invalid"),
        (event("ADDED", "1" * 1000), "invalid"),
        (b"{\n", "invalid"),
        (b'{"type": "ADDED", "object": []}\n', "invalid"),
    ],
)
def test_watches_that_go_wrong(text: bytes, cause: str, tmp_path: Path) -> None:
    error = refused_watch(pieces(text), tmp_path)
    assert error.cause == cause
    assert len(str(error)) < 400


def test_a_watch_that_is_cut_ends_and_none_begins_later(tmp_path: Path) -> None:
    hangs = threading.Event()
    try:
        with served(pieces(event("ADDED", "2"), hangs=hangs), tmp_path) as api:
            events = api.events("1", lambda: None)
            next(events)
            cutter = threading.Timer(0.05, api.cut)
            cutter.start()
            with pytest.raises(ApiError):
                next(events)
            cutter.join()
            with pytest.raises(ApiError, match="no longer asked"):
                list(api.events("1", lambda: None))
    finally:
        hangs.set()


def test_credentials_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ApiError) as caught:
        ObjectApi(ClusterAccess("a", kubeconfig=tmp_path / "none"))
    assert caught.value.cause == "config"
    with pytest.raises(ApiError) as caught:
        ObjectApi(ClusterAccess("a"))
    assert "Service host/port is not set" in str(caught.value)
