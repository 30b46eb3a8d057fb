"""A NATS server and an ingress before a stack's listener."""

from balancer.stack.nats_server import NatsServer
from balancer.stack.process import Child, LocalProcess
from balancer.stack.stack import Stack

REQUESTS, ANSWERS, DEAD, EVENTS = "requests", "answers", "requests-dead", "events"


def ingress_parts(stack: Stack, port: int) -> dict[str, LocalProcess]:
    """To be started in this order; what is in the topics outlives them."""
    folder = stack.directory
    server = NatsServer(port=port, directory=folder / "nats", log_path=folder / "nats.log")
    where = ("--broker", server.url, "--balancer", stack.admin(), "--listener", f"http://{stack.config.envoy.listen}")
    topics = ("--requests", REQUESTS, "--answers", ANSWERS, "--dead-letters", DEAD, "--events", EVENTS)
    ingress = Child(arguments=["ingress", *where, *topics], log_path=folder / "ingress.log")
    return {"nats": server, "ingress": ingress}
