"""A second balancer over the workers of a stack, and an Envoy beside it: as two pods of a gateway."""

from dataclasses import dataclass
from pathlib import Path

from balancer.stack.stack import merged
from support.stack import Stack


class Replica(Stack):
    """One more gateway. It shares the workers with the stack's own one, and nothing else."""

    def __init__(self, folder: Path) -> None:
        """Give `reports` to the stack's agents, so that they report here too."""
        super().__init__(folder, workers=0)
        self.reports = ("--balancer", self.addresses["listen"]["reports"])

    async def start_over(self, stack: Stack) -> None:
        """Start both over the stack's workers; wait until Envoy asks and all workers are ready."""
        self.policy, self.envoy_arguments, self.listed = stack.policy, stack.envoy_arguments, stack.specs
        self.settings = merged(stack.settings, {"envoy": {"shared_folder": str(self.directory / "shared")}})
        self.addresses["discovery"] = {"file": str(stack.directory / "workers.yaml")}
        await self.start()


@dataclass
class Gateways:
    """Two of them over the same workers; the stack has the first."""

    stack: Stack
    second: Replica

    @property
    def url(self) -> str:
        """For a client that goes to the first, and to the second where the first does not take it."""
        return f"ipv4:{self.stack.url},{self.second.url}"

    @property
    def admins(self) -> tuple[str, str]:
        """Of the balancers."""
        return self.stack.config.listen.admin_address(0), self.second.config.listen.admin_address(0)

    async def all_ready(self) -> None:
        """Wait until both balancers have heard of every worker, and are asked."""
        await self.stack.all_ready()
        await self.second.all_ready()
