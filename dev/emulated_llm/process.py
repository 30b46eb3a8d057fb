"""Start and stop an emulated server on this machine."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from balancer.stack.llama import OpenAIServer
from balancer.stack.process import free_ports


@dataclass(slots=True, kw_only=True)
class EmulatedLanguageModel(OpenAIServer):
    title: ClassVar[str] = "emulated language model"
    scenario: str
    """Whose first model it serves."""
    device: str
    block_tokens: int = 16

    async def start(self) -> None:
        self._check_not_started()
        await self._spawn(
            *(sys.executable, "-m", "dev.emulated_llm.server"),
            *("--scenario", self.scenario, "--device", self.device),
            *("--port", str(self.http_port), "--block-tokens", str(self.block_tokens)),
        )

    @property
    def agent_arguments(self) -> list[str]:
        return ["--openai", self.http_endpoint, "--device", self.device]


def new_emulated(
    devices: Mapping[str, str], scenario: str, directory: Path, block_tokens: int = 16
) -> list[EmulatedLanguageModel]:
    """Servers at free ports, by name with their devices, to be started; their logs go to `directory`."""
    return [
        EmulatedLanguageModel(
            name=name,
            http_port=port,
            log_path=directory / f"{name}.log",
            scenario=scenario,
            device=device,
            block_tokens=block_tokens,
        )
        for (name, device), port in zip(devices.items(), free_ports(len(devices)), strict=True)
    ]
