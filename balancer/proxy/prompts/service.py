"""The HTTP service: requests of OpenAI's API, forwarded as they are, or as a Triton's `generate_stream` takes them.

While nothing was said, another worker may be asked. After that a worker's death ends the stream by an event with the
error, or, where `proxy.resume` says so, another goes on.
"""

import contextlib
import time
import uuid
from collections.abc import Callable
from dataclasses import replace

from aiohttp import web

from balancer import bounds
from balancer.bounds import OutOfBoundsError
from balancer.extproc.kserve import Kind
from balancer.extproc.names import CHAT, COMPLETIONS, GATEWAY_REQUEST_ID_HEADER
from balancer.extproc.prompts import TokenShares, read_request
from balancer.proxy.inflating import NoRoomError, encoding_of
from balancer.proxy.messages import RESOURCE_EXHAUSTED, Arrived, ProxyAnswer, pushback
from balancer.proxy.prompts.forwarded import ClientLeftError, Forwarded, Means, error_response, refusal_response
from balancer.proxy.prompts.generated import Generated
from balancer.proxy.prompts.said import Said
from balancer.proxy.service import Proxy, RefusedError
from balancer.proxy.settings import ProxySettings

_FAILED = "the balancer failed at this request; its log says how"
_MOST_KEPT_BYTES = 2**29
"""The bodies that are kept take no more together. One is kept until its answer begins, with `proxy.resume` until it
ends."""
_NO_ROOM = "the balancer keeps as many prompts as it may; retry later"
_RETRY_S = 1.0


class Prompts:
    """Answers one request after the other on any number of connections, which are Envoy's."""

    def __init__(
        self,
        proxy: Proxy,
        means: Means,
        shares: TokenShares,
        failed: Callable[[Exception], None],
        *,
        serves: bool = True,
    ) -> None:
        """`failed` and `serves` as in `Rest`."""
        self._proxy, self._means = proxy, means
        self._shares, self._failed, self._serves = shares, failed, serves
        self._settings = ProxySettings()
        self._kept_bytes = 0

    def configure(self, settings: ProxySettings) -> None:
        self._settings = settings

    def takes(self, path: str) -> bool:
        return self._serves and path.partition("?")[0] in (CHAT, COMPLETIONS)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        forwarded: Forwarded | None = None
        try:
            with self._proxy.under_way(), contextlib.ExitStack() as kept:
                self._keep(request, kept)
                # No name for the body: it may be megabytes, and the answer may last.
                forwarded = self._forwarded(request, await self._body(request), kept.close)
                return await forwarded.run()
        except (RefusedError, NoRoomError) as error:
            return refusal_response(error.answer)
        except ClientLeftError as error:
            raise ConnectionResetError from error
        except (ConnectionError, TimeoutError, web.HTTPException):  # of the one that asks
            raise
        except Exception as error:
            self._failed(error)
            if forwarded is not None and forwarded.response is not None:
                raise ConnectionResetError from error
            return error_response(500, _FAILED)

    def _keep(self, request: web.BaseRequest, until: contextlib.ExitStack) -> None:
        """Room for a body; raises RefusedError where there is none."""
        told = None if request.headers.get("content-encoding") else request.content_length
        size_bytes = bounds.MAX_PROMPT_BYTES if told is None else min(told, bounds.MAX_PROMPT_BYTES)
        if self._kept_bytes + size_bytes > _MOST_KEPT_BYTES:
            self._means.attempts.counts["prompts", "no_room"] += 1
            raise RefusedError(pushback(ProxyAnswer(RESOURCE_EXHAUSTED, _NO_ROOM, unexecuted=True), _RETRY_S))
        self._kept_bytes += size_bytes
        until.callback(self._let_go, size_bytes)

    def _let_go(self, size_bytes: int) -> None:
        self._kept_bytes -= size_bytes

    async def _body(self, request: web.BaseRequest) -> bytes:
        inflating = self._proxy.inflating
        try:
            if not encoding_of(request):
                return await inflating.body(request, None)
            async with inflating.room() as room:
                return await inflating.body(request, room)
        except OutOfBoundsError as error:
            self._proxy.refuse(error)

    def _forwarded(self, request: web.BaseRequest, body: bytes, let_go: Callable[[], None]) -> Forwarded:
        # As a pick reads them.
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in request.raw_headers}
        # How it ended is known here: nobody will tell of it under an id.
        headers.pop(GATEWAY_REQUEST_ID_HEADER, None)
        headers |= {":path": request.rel_url.raw_path_qs}
        resumes = self._settings.proxy.resume
        said: Said | Generated | None
        try:
            call = read_request(headers, body, self._settings.names, self._shares, self._settings.tenant_of_user)
            self._proxy.check_ready()
            translated = self._settings.of(call.request.model).openai
            if translated is None:
                arrived = Arrived(call, body, (), repeatable=True)
                said = Said(request.rel_url.raw_path, body) if resumes else None
            else:
                said = Generated(
                    request.rel_url.raw_path,
                    body,
                    None if translated.template is None else translated.template.prompt,
                    translated.defaults,
                    name=uuid.uuid4().hex,
                    at_s=int(time.time()),
                    prompt_tokens=float(call.request.prompt_tokens),
                )
                call, draw = self._proxy.versioned(replace(call, openai=False, kind=Kind.STREAM))
                arrived = Arrived(call, said.body(), (), repeatable=True, draw=draw)
            away = self._proxy.over_limit(arrived)
        except OutOfBoundsError as error:
            self._proxy.refuse(error)
        if away is not None:
            raise RefusedError(away)
        return Forwarded(self._means, request, arrived, said, resumes=resumes, let_go=let_go)
