"""One pod of the chart, outside of a cluster: a folder for each volume, filled as a kubelet would, and each container's
command as a process, word for word but for paths, which lead into those folders, and for names of Services.

What an image has is taken from this environment: `balancer`, `envoy`, `tritonserver`. Not done: another user, a root
that cannot be written, limits.
"""

import asyncio
import base64
import itertools
import os
import re
import shlex
import ssl
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import aiohttp

from balancer.stack.envoyproxy import find_envoy
from balancer.stack.process import LocalProcess
from balancer.stack.tritonserver import find_triton
from support.chart import Object, containers, named

_SHARED_BY_ALL = ("/tmp", "/dev/shm", "/var/run/secrets/kubernetes.io/serviceaccount")
"""Mounts that are the machine's own here, or that nothing here reads."""


def executables(folder: Path) -> Path:
    """A folder with the commands that the images have."""
    folder.mkdir(parents=True, exist_ok=True)
    triton = find_triton()
    libraries = shlex.quote(":".join(str(path) for path in triton.library_path))
    server, backends = shlex.quote(str(triton.executable)), shlex.quote(str(triton.backend_directory))
    scripts = {
        "balancer": f'exec {shlex.quote(sys.executable)} -m balancer "$@"',
        "envoy": f'exec {shlex.quote(find_envoy())} "$@"',
        "tritonserver": (
            f"export LD_LIBRARY_PATH={libraries} PATH={shlex.quote(str(triton.python_directory))}:$PATH\n"
            f'exec {server} "$@" --backend-directory={backends}'
        ),
    }
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


@dataclass(slots=True, kw_only=True)
class ContainerOutside(LocalProcess):
    """One container's process."""

    title: ClassVar[str] = "container"
    command: list[str]
    environment: Mapping[str, str]

    async def start(self) -> None:
        """Spawn it."""
        self._check_not_started()
        await self._spawn(*self.command, at_our_end="TERM", environment=self.environment)


class PodOutside:
    """One pod. Containers are started by the test, in its order."""

    def __init__(
        self,
        found: Iterable[Object],
        workload: Object,
        directory: Path,
        *,
        binaries: Path,
        hosts: Iterable[str] = (),
        secrets: Mapping[str, Mapping[str, bytes]] | None = None,
        name: str = "",
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """`hosts`: names of Services, all of this machine; `secrets`: what others made, by name; `labels`: what the
        cluster gives the pod beside those of its template."""
        self._found, self._workload = list(found), workload
        self.name = name or f"{workload['metadata']['name']}-0"
        self._directory, self._binaries, self._hosts = directory, binaries, tuple(hosts)
        self._secrets, self._labels = secrets or {}, labels or {}
        self._versions = itertools.count()
        self.processes: dict[str, ContainerOutside] = {}
        self._volumes: dict[str, Path] = {}
        for volume in workload["spec"]["template"]["spec"]["volumes"]:
            self._volumes[volume["name"]] = directory / volume["name"]
        for volume in workload["spec"]["template"]["spec"]["volumes"]:
            self._fill(volume)

    def _of(self, container: str) -> Object:
        (one,) = (each for each in containers(self._workload) if each["name"] == container)
        return one

    def _fill(self, volume: Object) -> None:
        folder = self._volumes[volume["name"]]
        folder.mkdir(parents=True)
        if "configMap" in volume:
            self.swap(volume["name"], self._content(volume["configMap"]))
        elif "secret" in volume:
            self.swap(volume["name"], self._secrets[volume["secret"]["secretName"]])

    def _content(self, reference: Object) -> dict[str, bytes]:
        held = named(self._found, "ConfigMap", reference["name"])
        files = {key: self.mapped(text).encode() for key, text in held.get("data", {}).items()}
        files |= {key: base64.b64decode(text) for key, text in held.get("binaryData", {}).items()}
        if "items" not in reference:
            return files
        return {item["path"]: files[item["key"]] for item in reference["items"]}

    def swap(self, volume: str, files: Mapping[str, bytes]) -> None:
        """What the kubelet does to a volume of files: a new folder, then `..data` swapped to it by one rename."""
        folder = self._volumes[volume]
        version = f"..version-{next(self._versions)}"
        for name, content in files.items():
            file = folder / version / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        (folder / "..data_tmp").symlink_to(version)
        (folder / "..data_tmp").replace(folder / "..data")
        for name in {Path(name).parts[0] for name in files}:
            if not (folder / name).is_symlink():
                (folder / name).symlink_to(f"..data/{name}")

    def mapped(self, text: str) -> str:
        """With the paths and names of this machine."""
        mounts = {mount["mountPath"]: mount for each in containers(self._workload) for mount in each["volumeMounts"]}
        for host in self._hosts:
            text = text.replace(f"{host}:", "127.0.0.1:")
        for path in sorted((each for each in mounts if each not in _SHARED_BY_ALL), key=len, reverse=True):
            # /models/digits is a part of /models: what Triton is told is the folder that it is mounted in.
            below = mounts[path].get("subPath")
            here = self._volumes[mounts[path]["name"]]
            at, to = (str(Path(path).parent), here / "..data") if below else (path, here)
            text = re.sub(rf"(?<![\w./]){re.escape(at)}(?![\w.-])", str(to), text)
        return text

    def _environment(self, container: str) -> dict[str, str]:
        environment = dict(os.environ) | {"PATH": f"{self._binaries}:{os.environ['PATH']}"}
        return environment | self._variables(container)

    def _variables(self, container: str) -> dict[str, str]:
        """As the pod declares them."""
        return {
            variable["name"]: self._field(variable["valueFrom"]["fieldRef"]["fieldPath"])
            if "valueFrom" in variable
            else variable["value"]
            for variable in self._of(container).get("env", ())
        }

    def _field(self, path: str) -> str:
        """Of the downward API: a label that the pod does not have is empty."""
        if path == "metadata.name":
            return self.name
        (label,) = re.fullmatch(r"metadata\.labels\['(.+)'\]", path).groups()  # type: ignore[union-attr]  # else the test fails
        return self._labels.get(label, "")

    def _words(self, container: str, words: Iterable[str]) -> list[str]:
        """Of a command, as the kubelet has them."""
        found = list(words)
        for name, value in self._variables(container).items():
            found = [word.replace(f"$({name})", value) for word in found]
        return [self.mapped(word) for word in found]

    async def start(self, container: str) -> ContainerOutside:
        """Its command and arguments."""
        one = self._of(container)
        command = self._words(container, (*one["command"], *one.get("args", ())))
        command[0] = self._found_on_path(command[0])
        log = self._directory / f"{container}.log"
        process = ContainerOutside(log_path=log, command=command, environment=self._environment(container))
        self.processes[container] = process
        await process.start()
        return process

    def _found_on_path(self, name: str) -> str:
        beside = self._binaries / name
        return str(beside) if beside.exists() else name

    async def execute(self, container: str, command: list[str]) -> int:
        """As a kubelet does in a container that runs; the exit status."""
        words = self._words(container, command)
        words[0] = self._found_on_path(words[0])
        process = await asyncio.create_subprocess_exec(
            *words, env=self._environment(container), stdin=asyncio.subprocess.DEVNULL
        )
        return await process.wait()

    async def pre_stop(self, container: str) -> int:
        """Its hook before its end."""
        return await self.execute(container, self._of(container)["lifecycle"]["preStop"]["exec"]["command"])

    async def probe(self, container: str, kind: str) -> bool:
        """Whether the kubelet's probe succeeds."""
        one = self._of(container)
        probe = one[f"{kind}Probe"]
        if "exec" in probe:
            return await self.execute(container, probe["exec"]["command"]) == 0
        ports = {port["name"]: port["containerPort"] for port in one["ports"]}
        wanted = probe["httpGet"]
        url = f"{wanted.get('scheme', 'HTTP').lower()}://127.0.0.1:{ports[wanted['port']]}{wanted['path']}"
        # A kubelet checks no certificate.
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        try:
            async with aiohttp.ClientSession() as session, session.get(url, ssl=trusting) as response:
                return 200 <= response.status < 400
        except aiohttp.ClientError:
            return False

    async def probes(self, kind: str) -> bool:
        """Whether this probe of every container that has one succeeds."""
        having = [each["name"] for each in containers(self._workload) if f"{kind}Probe" in each]
        return all([await self.probe(container, kind) for container in having])

    async def stop(self) -> None:
        """End what runs."""
        for process in self.processes.values():
            await process.stop()
