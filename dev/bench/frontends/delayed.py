"""Workers that are no Tritons: each answers any inference with 64 bytes after a time of its own. Run as a process.

python -m dev.bench.frontends.delayed PORT:MILLISECONDS ...
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc

from balancer.proxy.messages import INFER

ANSWER = bytes((0x32, 62)) + bytes(62)


async def serve(delays_s: dict[int, float]) -> None:
    servers = []
    _, service, method = INFER.split("/")
    for port, delay_s in delays_s.items():

        async def infer(_: bytes, context: Any, delay_s: float = delay_s) -> bytes:
            await asyncio.sleep(delay_s)
            return ANSWER

        handler: Any = grpc.unary_unary_rpc_method_handler(infer, None, None)
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        servers.append(server)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    pairs = (argument.split(":") for argument in sys.argv[1:])
    asyncio.run(serve({int(port): float(milliseconds) / 1e3 for port, milliseconds in pairs}))
