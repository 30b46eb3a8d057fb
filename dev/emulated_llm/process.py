"""Start and stop an emulated server on this machine."""

import sys
from dataclasses import dataclass
from typing import ClassVar

from balancer.stack.llama import OpenAIServer


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
