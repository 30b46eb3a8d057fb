"""A real Kubernetes API server with etcd, and who does there what kubelet and people do. No other part of Kubernetes
runs: pods are made ready and deleted by the test.

The server is made and started by `kube/apiserver` of the folder `shared` beside the repository; where that, or the
server that it builds, is absent, tests that need it skip.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from balancer.stack.process import free_port_range
from support.pods import pod
from support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT.parent / "shared" / "kube" / "apiserver"
_MERGE = "application/merge-patch+json"
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def why_absent() -> str:
    """Why there is no API server here; empty: there is one."""
    cache = Path(os.environ.get("KUBE_CACHE") or Path.home() / ".cache" / "kube-apiserver")
    if not SCRIPT.exists():
        return "there is no ../shared/kube/apiserver"
    if not os.access(cache / "kube-apiserver", os.X_OK):
        return "the Kubernetes API server is not built: run ../shared/kube/apiserver build (minutes)"
    return "" if shutil.which("etcd") else "there is no etcd: run ../shared/kube/apiserver build (minutes)"


class KubernetesApi:
    """The server, as cluster-admin."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port_range(3)
        self.url = f"https://127.0.0.1:{self.port}"
        self._token = ""
        self._command: list[str] = []
        self._session: aiohttp.ClientSession | None = None

    def start(self) -> None:
        """Start etcd and the server; some 10 s."""
        command = [str(SCRIPT), "start", str(self.directory), str(self.port)]
        subprocess.run(command, check=True, timeout=120, stdout=subprocess.DEVNULL)
        kubeconfig = yaml.safe_load((self.directory / "kubeconfig").read_text())
        self._token = kubeconfig["users"][0]["user"]["token"]
        self._command = Path(f"/proc/{self._pid('apiserver')}/cmdline").read_text().rstrip("\0").split("\0")

    def stop(self) -> None:
        """Stop both."""
        for name in ("apiserver", "etcd"):
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                os.kill(self._pid(name), signal.SIGKILL)

    async def kill(self) -> None:
        """Kill the server, and leave etcd."""
        os.kill(pid := self._pid("apiserver"), signal.SIGKILL)
        await eventually(lambda: not _runs(pid), "the API server is dead")

    async def restart(self) -> None:
        """Start it anew over what etcd has."""
        with (self.directory / "apiserver-again.log").open("w") as log:
            process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)
        (self.directory / "apiserver.pid").write_text(f"{process.pid}\n")

        async def answers() -> bool:
            with contextlib.suppress(aiohttp.ClientError):
                return (await self.ask("GET", "/api/v1/namespaces/default"))[0] == 200
            return False

        await eventually(answers, "the API server answers again")

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        """Connections of the running event loop."""
        trusted = ssl.create_default_context(cafile=str(self.certificate))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusted)) as self._session:
            yield

    @property
    def certificate(self) -> Path:
        """The server's own, which it signed itself."""
        return self.directory / "certs" / "apiserver.crt"

    async def ask(
        self, method: str, path: str, body: Any = None, kind: str = "application/json", token: str = ""
    ) -> tuple[int, Any]:
        """Status and answer; `token`: of somebody else than cluster-admin."""
        headers = {"Authorization": f"Bearer {token or self._token}", "Content-Type": kind}
        assert self._session is not None, "outside of `session`"
        async with self._session.request(method, self.url + path, json=body, headers=headers) as answer:
            # A path that the server does not know is answered in plain text.
            return answer.status, await (answer.json() if "json" in answer.content_type else answer.text())

    async def do(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """The answer of a call that must succeed."""
        status, answer = await self.ask(method, path, body, kind)
        assert 200 <= status < 300, (method, path, status, answer)
        return answer

    async def collection(self, version: str, kind: str, namespace: str = "") -> str:
        """The path of all objects of a kind, by what the server says that it serves."""
        group = f"/apis/{version}" if "/" in version else f"/api/{version}"
        served = {
            each["kind"]: each["name"] for each in (await self.do("GET", group))["resources"] if "/" not in each["name"]
        }
        return f"{group}/namespaces/{namespace}/{served[kind]}" if namespace else f"{group}/{served[kind]}"

    async def serves(self, kinds: Mapping[str, Iterable[str]]) -> None:
        """Return once the server serves these, by version."""

        async def served() -> bool:
            groups = (await self.do("GET", "/apis"))["groups"]
            if not {*kinds} <= {version["groupVersion"] for group in groups for version in group["versions"]}:
                return False
            lists = {version: await self.ask("GET", f"/apis/{version}") for version in kinds}
            return all(
                status == 200 and {*kinds[version]} <= {each["kind"] for each in found["resources"]}
                for version, (status, found) in lists.items()
            )

        await eventually(served, "the API serves the kinds")

    async def define(self, *definitions: dict[str, Any]) -> None:
        """Return once these kinds are served."""
        for each in definitions:
            await self.do("POST", _DEFINITIONS, each)
        await self.serves(_kinds(definitions))

    async def forget(self, *definitions: dict[str, Any]) -> None:
        """Return once none of these kinds, as far as they were there, has a group any more."""
        for each in definitions:
            await self.ask("DELETE", f"{_DEFINITIONS}/{each['metadata']['name']}")
        gone = {version.partition("/")[0] for version in _kinds(definitions)}
        await eventually(
            lambda: self.do("GET", "/apis"),
            f"no kinds of {gone} are served",
            until=lambda served: not gone & {group["name"] for group in served["groups"]},
        )

    async def namespace(self, name: str) -> Namespace:
        """A new one."""
        await self.do("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        return Namespace(self, name)

    async def etcd(self, call: str, **body: Any) -> Any:
        """A call of etcd's own, such as `kv/compaction`."""
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{self.port + 1}/v3/{call}"
            async with session.post(url, json=body) as answer:
                assert answer.status == 200, await answer.text()
                return await answer.json(content_type=None)

    async def forget_in_etcd(self, *keys: str) -> None:
        """Delete keys behind the API's back, and compact, so that nobody is told of it any more."""
        for key in keys:
            deleted = await self.etcd("kv/deleterange", key=_base64(key))
            assert deleted["deleted"] == "1", key
        # A few revisions more, so that versions from before are older than all that the server remembers.
        for number in range(100):
            last = await self.etcd("kv/put", key=_base64("/test"), value=_base64(str(number)))
        await self.etcd("kv/compaction", revision=last["header"]["revision"], physical=True)

    def _pid(self, name: str) -> int:
        return int((self.directory / f"{name}.pid").read_text())


class Namespace:
    """One namespace, and its pods as people and a kubelet treat them."""

    def __init__(self, api: KubernetesApi, name: str) -> None:
        self.api = api
        self.name = name
        self._pods = f"/api/v1/namespaces/{name}/pods"

    async def create(self, name: str, **more: Any) -> None:
        """A pod on a node, not started; `more` as of `support.pods.pod`."""
        made = pod(name, **more)
        metadata = {field: made["metadata"][field] for field in ("name", "labels", "annotations")}
        container = {**made["spec"]["containers"][0], "image": "triton"}
        # On a node: only then does a deletion leave it there until the kubelet is done.
        spec = {"nodeName": "node-0", "containers": [container]}
        await self.api.do("POST", self._pods, {"metadata": metadata, "spec": spec})

    async def status(self, name: str, **more: Any) -> None:
        """What the kubelet says of a pod; `more` as of `support.pods.pod`."""
        await self.api.do("PATCH", f"{self._pods}/{name}/status", {"status": pod(name, **more)["status"]}, _MERGE)

    async def ready(self, name: str, **more: Any) -> None:
        """A pod that is created and becomes ready."""
        await self.create(name, **more)
        await self.status(name, **more)

    async def label(self, name: str, **labels: str | None) -> None:
        """Set labels; None removes one."""
        await self.api.do("PATCH", f"{self._pods}/{name}", {"metadata": {"labels": labels}}, _MERGE)

    async def annotate(self, name: str, **annotations: str | None) -> None:
        """Set annotations of the balancer's."""
        of_balancer = {f"balancer/{key}": value for key, value in annotations.items()}
        await self.api.do("PATCH", f"{self._pods}/{name}", {"metadata": {"annotations": of_balancer}}, _MERGE)

    async def delete(self, name: str) -> None:
        """As a person does: it terminates."""
        await self.api.do("DELETE", f"{self._pods}/{name}", {"gracePeriodSeconds": 30})

    async def end(self, name: str) -> None:
        """As a kubelet does once all has ended: it is gone."""
        await self.api.do("DELETE", f"{self._pods}/{name}", {"gracePeriodSeconds": 0})

    async def token(self, account: str) -> str:
        """Of a service account."""
        path = f"/api/v1/namespaces/{self.name}/serviceaccounts/{account}/token"
        return str((await self.api.do("POST", path, {"spec": {"expirationSeconds": 3600}}))["status"]["token"])

    async def create_all(self, wanted: Iterable[dict[str, Any]]) -> None:
        """Objects of this namespace."""
        for each in wanted:
            path = await self.api.collection(each["apiVersion"], each["kind"], self.name)
            await self.api.do("POST", path, each)

    async def kubeconfig(self, file: Path, token: str) -> Path:
        """A kubeconfig for whoever has the token."""
        cluster = {"server": self.api.url, "certificate-authority": str(self.api.certificate)}
        context = {"cluster": "c", "user": "u", "namespace": self.name}
        found = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": context}],
            "current-context": "x",
        }
        file.write_text(yaml.safe_dump(found))
        return file


def definition(version: str, kind: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """Of a kind; None: that may have anything in it."""
    group, _, number = version.partition("/")
    plural = f"{kind.lower()}s"
    schema = schema or {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        # Groups that are Kubernetes' own have to say who allowed it.
        "metadata": {"name": f"{plural}.{group}", "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [{"name": number, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def _kinds(definitions: Iterable[dict[str, Any]]) -> dict[str, set[str]]:
    """By group and version."""
    found: dict[str, set[str]] = {}
    for each in definitions:
        spec = each["spec"]
        found.setdefault(f"{spec['group']}/{spec['versions'][0]['name']}", set()).add(spec["names"]["kind"])
    return found


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
