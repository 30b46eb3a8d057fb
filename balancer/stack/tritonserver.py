"""Start and stop real Triton servers on this machine, from the tritonserver that the nvidia-pytriton wheel carries.

The wheel holds the server, the library of its Python backend and one stub process per Python version, but not laid
out as the server wants them: the stub must lie beside the library in one backend directory. The stub is built against
NumPy 1 (with NumPy 2 it reads inputs as zeros and sends empty outputs, without an error), so models run in a Python
environment of their own, `triton-python` inside ours. Nothing here imports pytriton.
"""

import contextlib
import ctypes.util
import functools
import importlib.util
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from balancer.discovery.workers import WorkerSpec
from balancer.errors import OperatorError, missing
from balancer.stack.llama import find_language_model
from balancer.stack.process import LocalProcess, ProcessExitedError

_PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
_LOG_ERROR = re.compile(r"E\d{4} |error:")
_LOG_NOISE = "CudaDriverHelper has not been initialized"
"""Logged as an error wherever there is no GPU."""
_SHARED_MEMORY = Path("/dev/shm")
EMULATED_GPU = "EMULATED_GPU"
"""Names, in its environment, the device that the server's models emulate."""

# What a server needs none of here: CUDA pools, host metrics, and a thread pool for each of 8 HTTP threads.
_LEAN_ARGUMENTS = (
    "--model-control-mode=none",
    "--pinned-memory-pool-byte-size=0",
    "--http-thread-count=2",
    "--model-load-thread-count=8",
    "--allow-gpu-metrics=false",
    "--allow-cpu-metrics=false",
    "--allow-metrics=true",
    # Of 32 threads for each model: only calls of one model to another, and decoupled ones, use them.
    "--backend-config=python,thread-pool-size=4",
    # To the models: those that emulate GPUs may remember keys (triton/emulation/key_cache.py).
    "--grpc-header-forward-pattern=(?i)x-routing-key",
    "--http-header-forward-pattern=(?i)x-routing-key",
)


class TritonUnavailableError(OperatorError):
    """This environment cannot run a Triton server; the message names what is missing and how to get it."""


class TritonExitedError(ProcessExitedError):
    """The server ended, or did not become ready; the message carries what its log says."""


@dataclass(frozen=True, slots=True)
class TritonInstallation:
    executable: Path
    backend_directory: Path
    library_path: tuple[Path, ...]
    python_directory: Path
    """First on PATH: the embedded Python finds its packages (NumPy) through the `python3` there."""


@functools.cache
def find_triton(cache_directory: Path | None = None) -> TritonInstallation:
    """Find the wheel's parts and lay out the backend directory; the same one for all servers of an environment.

    Args:
        cache_directory: Where to put the backend directory (a few links). Default: inside the environment
            (`sys.prefix`) or, where that is read-only, a directory of this user under the temporary directory.

    Raises:
        TritonUnavailableError: if the wheel, its stub for this Python, libpython, or NumPy 1 for it is missing.
    """
    if words := missing((_wheel_directory, _libpython_directories, _python_environment)):
        raise TritonUnavailableError(words)
    wheel = _wheel_directory()
    parts = wheel / "pytriton" / "tritonserver"
    backend = parts / "backends" / "python"
    stub = parts / "python_backend_stubs" / _PYTHON_VERSION / "triton_python_backend_stub"
    if not stub.is_file():
        raise TritonUnavailableError(
            f"nvidia-pytriton carries no Python backend stub for Python {_PYTHON_VERSION} ({stub}); "
            "make the environment with Python 3.11"
        )
    files = [backend / "libtriton_python.so", backend / "triton_python_backend_utils.py", stub]
    directory = _assemble_backend(files, cache_directory or _default_cache_directory())
    return TritonInstallation(
        executable=parts / "bin" / "tritonserver",
        backend_directory=directory,
        library_path=(wheel / "nvidia_pytriton.libs", *_libpython_directories()),
        python_directory=_python_environment() / "bin",
    )


def _wheel_directory() -> Path:
    remedy = "install it without its dependencies: pip install --no-deps nvidia-pytriton==0.7.0"
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise TritonUnavailableError(f"no tritonserver: the wheel nvidia-pytriton is not installed; {remedy}")
    package = Path(spec.submodule_search_locations[0])
    if not (package / "tritonserver" / "bin" / "tritonserver").is_file():
        raise TritonUnavailableError(f"no tritonserver in {package}: the wheel nvidia-pytriton is incomplete; {remedy}")
    return package.parent


def _libpython_directories() -> tuple[Path, ...]:
    """Directories to add for the shared libpython that the stub links: none where the loader finds it by itself."""
    if ctypes.util.find_library(f"python{_PYTHON_VERSION}") is not None:
        return ()
    directory = Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib")
    if (directory / f"libpython{_PYTHON_VERSION}.so.1.0").is_file():
        return (directory,)
    raise TritonUnavailableError(
        f"Triton's Python backend needs libpython{_PYTHON_VERSION}.so.1.0, which is not installed; "
        f"on Debian: apt-get install libpython{_PYTHON_VERSION}"
    )


def _python_environment() -> Path:
    environment = Path(sys.prefix) / "triton-python"
    if not any(environment.glob(f"lib/python{_PYTHON_VERSION}/site-packages/numpy-1.*.dist-info")):
        raise TritonUnavailableError(
            f"Triton's Python backend needs NumPy 1 in {environment}; make setup puts it there, or by hand: "
            f"python -m venv --without-pip {environment} && "
            f'pip --python {environment}/bin/python install "numpy>=1.26,<2"'
        )
    return environment


def _default_cache_directory() -> Path:
    environment = Path(sys.prefix)
    if sys.prefix != sys.base_prefix and os.access(environment, os.W_OK):
        return environment / "var" / "triton-backends"
    return Path(tempfile.gettempdir()) / f"triton-backends-{os.getuid()}"


def _assemble_backend(files: Sequence[Path], cache_directory: Path) -> Path:
    """Link the files into one directory named after them, whole or not at all: several servers may start at once."""
    # The name changes with the files, so an upgraded wheel gets its own directory.
    stamp = "\n".join(f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files)
    backends = cache_directory / uuid.uuid5(uuid.NAMESPACE_URL, stamp).hex
    if backends.is_dir():
        return backends
    cache_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix="draft-", dir=cache_directory))
    try:
        (draft / "python").mkdir()
        for file in files:
            (draft / "python" / file.name).symlink_to(file)
        draft.rename(backends)
    except OSError:
        # Another process was first; anything else is a real failure.
        if not backends.is_dir():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return backends


@dataclass(slots=True, kw_only=True)
class TritonServer(LocalProcess):
    title: ClassVar[str] = "Triton"
    exited: ClassVar[type[ProcessExitedError]] = TritonExitedError
    name: str
    """The server's id, and BALANCER_WORKER in the models' environment (see triton/README.md)."""
    model_repository: Path | Sequence[Path]
    grpc_port: int
    http_port: int
    metrics_port: int
    address: str = "127.0.0.1"
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to this process's environment, e.g. `EMULATED_GPU`."""
    extra_args: Sequence[str] = ()
    """Further arguments of tritonserver; they come last, so they win."""
    exit_timeout_s: int = 5
    """How long a stopping server waits for requests in flight, and for idle HTTP connections, before it goes."""
    cache_directory: Path | None = None
    """See `find_triton`."""
    _shared_memory_prefix: str = field(default="", init=False, repr=False)
    _cleaned_up: bool = field(default=False, init=False, repr=False)

    @property
    def called(self) -> str:
        return f"Triton {self.name}"

    @property
    def shared_memory_prefix(self) -> str:
        """How the names of this server's regions under /dev/shm begin; empty before `start`."""
        return self._shared_memory_prefix

    @property
    def grpc_endpoint(self) -> str:
        return f"{self.address}:{self.grpc_port}"

    @property
    def http_endpoint(self) -> str:
        return f"{self.address}:{self.http_port}"

    @property
    def spec(self) -> WorkerSpec:
        """As discovery lists it."""
        return WorkerSpec(
            name=self.name,
            address=self.address,
            grpc_port=self.grpc_port,
            http_port=self.http_port,
            device=self.environment.get(EMULATED_GPU, ""),
        )

    @property
    def agent_arguments(self) -> list[str]:
        """By which `balancer agent` reads it."""
        return [
            *("--triton-grpc", self.grpc_endpoint),
            *("--triton-metrics", f"{self.address}:{self.metrics_port}"),
            *("--triton-http", self.http_endpoint),
            *(("--device", gpu) if (gpu := self.environment.get(EMULATED_GPU)) else ()),
        ]

    async def start(self) -> None:
        """Spawn the server; it is not ready yet when this returns.

        Raises:
            TritonUnavailableError: if the environment lacks a part.
            FileNotFoundError: if a model repository does not exist.
            RuntimeError: if it was started before.
        """
        self._check_not_started()
        for repository in self._repositories():
            if not repository.is_dir():
                raise FileNotFoundError(f"model repository {repository} of Triton {self.name} is not a directory")
        installation = find_triton(self.cache_directory)
        self._shared_memory_prefix = f"triton_{uuid.uuid4().hex[:12]}_"
        await self._spawn(*self._command(installation), environment=self._environment(installation))

    async def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Return once the server and all its models are ready.

        Raises:
            TritonExitedError: if the server ends before that, or is not ready in time.
        """
        await self.answers(f"http://{self.http_endpoint}/v2/health/ready", timeout_s)

    async def kill(self) -> None:
        """End the server and its stubs at once, as a lost pod would, and remove the shared memory they leave."""
        if self._process is None or self._cleaned_up:
            return
        await LocalProcess.kill(self)
        for region in _SHARED_MEMORY.glob(f"{self._shared_memory_prefix}*"):
            region.unlink(missing_ok=True)
        self._cleaned_up = True

    def _repositories(self) -> list[Path]:
        repository = self.model_repository
        return [repository] if isinstance(repository, Path) else list(repository)

    def _command(self, installation: TritonInstallation) -> list[str]:
        return [
            str(installation.executable),
            f"--id={self.name}",
            *(f"--model-repository={repository}" for repository in self._repositories()),
            f"--backend-directory={installation.backend_directory}",
            f"--backend-config=python,shm-region-prefix-name={self._shared_memory_prefix}",
            f"--http-address={self.address}",
            f"--http-port={self.http_port}",
            f"--grpc-address={self.address}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-port={self.metrics_port}",
            f"--exit-timeout-secs={self.exit_timeout_s}",
            *_LEAN_ARGUMENTS,
            *self.extra_args,
        ]

    def _environment(self, installation: TritonInstallation) -> dict[str, str]:
        environment = os.environ | {
            "BALANCER_WORKER": self.name,
            "EMULATED_GPU_LOCK": str(self.log_path.with_suffix(".gpu-lock").resolve()),
            # One BLAS thread a stub: the models here are small, and many servers share the machine.
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        with contextlib.suppress(OperatorError):  # only triton/language_models needs it
            environment["LANGUAGE_MODEL_GGUF"] = str(find_language_model())
        environment |= self.environment
        for variable, directories in (
            ("LD_LIBRARY_PATH", installation.library_path),
            ("PATH", (installation.python_directory,)),
        ):
            parts = [str(directory) for directory in directories]
            environment[variable] = os.pathsep.join([*parts, *filter(None, [environment.get(variable)])])
        return environment

    def _telling(self, lines: list[str]) -> list[str]:
        """Tables of settings follow the reason, so errors tell more than the end."""
        return [line for line in lines if _LOG_ERROR.match(line) and _LOG_NOISE not in line] or lines
