"""A stream of inferences between its client and the one worker that its first message led to."""

import asyncio
import math
from dataclasses import replace
from typing import Any

import grpc

from balancer.extproc.inference_bytes import refused_in_stream
from balancer.extproc.responses import By
from balancer.proxy.attempts import Attempts, Clocks
from balancer.proxy.messages import CANCELLED, OK, STREAM, Arrived, Context, ProxyAnswer, failed, outcome_of, passed_on
from balancer.proxy.tenants import TenantLimits
from balancer.scheduler.after_decision import Decision
from balancer.scheduler.errors import RoutingError


async def _send(rpc: Any, message: bytes) -> bool:
    """To the worker; False: it has ended the stream, and its status says how.

    Not by `rpc.write`: where that meets the end of the stream, it puts an INTERNAL of its own over the worker's status.
    """
    try:
        await rpc.wait_for_connection()
        await rpc._cython_call.send_serialized_message(message)
    except (grpc.aio.AioRpcError, grpc.aio.InternalError):
        return False
    return True


class RelayedStream:
    def __init__(
        self, attempts: Attempts, clocks: Clocks, tenants: TenantLimits, arrived: Arrived, client: Context
    ) -> None:
        """`arrived`: its first message; `client`: its client's end."""
        self._attempts, self._clocks, self._tenants = attempts, clocks, tenants
        self._arrived, self._client = arrived, client
        self.received_bytes = 0
        self._sent_bytes = 0
        self.messages = 0
        """How many messages of the answer have come."""
        self._first_s = self._last_s = math.nan
        """When messages of the answer came."""
        self._asked_again = False
        """What comes belongs to more than one request."""
        self._writing = asyncio.Lock()

    async def run(self) -> ProxyAnswer:
        """Carry messages both ways until the worker ends the stream, and how it did.

        While nothing has gone either way but the first message, another worker may take a stream that could not be
        opened.
        """
        tried: set[str] = set()
        answer: ProxyAnswer | None = None
        while True:
            try:
                decision = await self._attempts.place(self._arrived, tried)
            except RoutingError as error:
                return answer or self._attempts.refused(error)
            tried.add(decision.worker)
            answer = await self._with(decision)
            untouched = answer.unexecuted and not (self.received_bytes or self._sent_bytes)
            if not untouched or not await self._attempts.may_go_on(self._arrived, answer, len(tried), tried):
                return answer

    async def _with(self, decision: Decision) -> ProxyAnswer:
        clocks, arrived = self._clocks, self._arrived
        answer = ProxyAnswer(CANCELLED, by="client")
        try:
            answer = await self._carry(decision)
        except (asyncio.CancelledError, grpc.aio.InternalError):  # the latter where the client cannot be written to
            by: By = "deadline" if clocks.now() >= arrived.deadline_s else "client"
            answer = ProxyAnswer(CANCELLED, by=by)
            raise
        finally:
            tokens = self.messages if arrived.call.has_prompt and not self._asked_again else 0
            self._attempts.finished(arrived, decision, outcome_of(answer), None, float(tokens), self._last_s)
        return replace(answer, messages=self.messages, answering_s=self._last_s - self._first_s)

    async def _carry(self, decision: Decision) -> ProxyAnswer:
        arrived, worker = self._arrived, decision.worker
        channel = self._attempts.channel(worker)
        if isinstance(channel, ProxyAnswer):
            return channel
        left_s = arrived.deadline_s - self._clocks.now()
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(STREAM)
        rpc = method(timeout=left_s if left_s < math.inf else None, metadata=arrived.metadata)
        up = None
        try:
            if await _send(rpc, arrived.data):
                up = asyncio.create_task(self._up(rpc, worker))
            await self._down(rpc, decision)
            trailing = passed_on(await rpc.trailing_metadata() or ())
            return ProxyAnswer(OK, worker=worker, trailing=trailing)
        except grpc.aio.AioRpcError as error:
            return failed(error, worker)
        finally:
            rpc.cancel()
            if up is not None:
                up.cancel()
                await asyncio.gather(up, return_exceptions=True)

    async def _up(self, rpc: grpc.aio.StreamStreamCall[bytes, bytes], worker: str) -> None:
        """From the client; where the worker takes no more, its status says why."""
        try:
            while isinstance(message := await self._client.read(), bytes):
                self.received_bytes += len(message)
                self._asked_again = True
                # Ended, the stream would lose what its worker is about; so it waits, and gRPC keeps its client waiting.
                await self._tenants.wait(self._arrived.call.request.tenant, message)
                if why := self._attempts.objection(worker, message):
                    await self._write(refused_in_stream(message, why))
                elif not await _send(rpc, message):
                    return
            await rpc.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return

    async def _write(self, message: bytes) -> None:
        async with self._writing:  # gRPC takes one at a time
            self._sent_bytes += len(message)
            await self._client.write(message)

    async def _down(self, rpc: grpc.aio.StreamStreamCall[bytes, bytes], decision: Decision) -> None:
        """To the client, until the worker has ended the stream; AioRpcError where that was with an error."""
        while isinstance(message := await rpc.read(), bytes):
            self._last_s = self._clocks.now()
            self.messages += 1
            if self.messages == 1 and self._arrived.call.streams_tokens:
                self._first_s = self._last_s
                self._attempts.begins(self._arrived, decision)
            if not self._sent_bytes and (initial := passed_on(await rpc.initial_metadata() or ())):
                await self._client.send_initial_metadata(initial)
            await self._write(message)
        code = await rpc.code()
        if code is not grpc.StatusCode.OK:
            raise grpc.aio.AioRpcError(
                code, await rpc.initial_metadata(), await rpc.trailing_metadata(), await rpc.details()
            )
