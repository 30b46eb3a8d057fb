"""What replicas of Ray Serve run in tests and benchmarks: KServe's inference by HTTP, on GPUs that are emulated by
sleeping. Imported in Ray's own environment alone.
"""

import asyncio
from typing import Any

from fastapi import FastAPI, Request
from ray import serve

api = FastAPI()


@serve.deployment
@serve.ingress(api)
class EmulatedGpu:
    def __init__(self, seconds: list[float]) -> None:
        """`seconds`: that a request takes, by the replica's rank, from the first again where there are more."""
        rank: Any = serve.get_replica_context().rank
        self._took_s = seconds[rank.rank % len(seconds)]
        self._device = asyncio.Lock()

    @api.post("/infer")
    async def infer(self, request: Request) -> dict[str, Any]:
        asked = await request.json()
        async with self._device:
            await asyncio.sleep(self._took_s)
        tensor = asked["inputs"][0]
        doubled = tensor | {"name": "OUTPUT", "data": [2 * value for value in tensor["data"]]}
        return {"model_name": "emulated", "model_version": "1", "id": asked.get("id", ""), "outputs": [doubled]}


def emulated_gpu(arguments: dict[str, str]) -> serve.Application:
    """`arguments`: `seconds`, with commas."""
    application: serve.Application = EmulatedGpu.bind([float(each) for each in arguments["seconds"].split(",")])
    return application
