"""A request of OpenAI's API as Triton's `generate_stream` takes it, and its answer as OpenAI's clients read it. Pure.

Triton's backends for vLLM and TensorRT-LLM have the text in `text_input` and `text_output`, and what else a request
says in members of the same names. What they cannot do is refused: a client is not to believe that it was done.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from balancer.bounds import MAX_PROMPT_TOKENS, OutOfBoundsError, RefusedInputError, shown
from balancer.extproc.inference_bytes import TRITON_PROMPT
from balancer.extproc.names import CHAT
from balancer.extproc.prompts import Usage

TRITON_TEXT = "text_output"
_PASSED = (
    *("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "ignore_eos"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty"),
)
_READ = frozenset(("model", "messages", "prompt", "stream", "stream_options", "stop", "max_completion_tokens"))
_OF_NO_ACCOUNT = frozenset(("user", "metadata", "store", "service_tier", "priority"))
"""What they ask for is not a worker's, or changes no answer."""
_MOST_MESSAGES = 16_384
_MOST_STOPS, _MOST_STOP_CHARACTERS = 16, 256
_MOST_CHARACTERS = 2**22
"""Of one answer."""
_EVENT, _BREAK = b"data:", b"\n\n"
_PROMPT_TOKENS, _OUTPUT_TOKENS, _FINISH = "num_input_tokens", "num_output_tokens", "finish_reason"
"""Outputs by which vLLM's backend tells, where it is asked to."""

Template = Callable[[list[dict[str, Any]]], str]


class WorkerError(Exception):
    """The worker answers by an error; the message is its own."""


class Generated:
    """One request. Its answer comes event by event."""

    def __init__(
        self,
        path: str,
        body: bytes,
        template: Template | None,
        defaults: Mapping[str, Any],
        *,
        name: str,
        at_s: int,
        prompt_tokens: float,
    ) -> None:
        """
        Args:
            path: Of the request, by OpenAI's API.
            body: It was understood already.
            template: Makes a text of a chat; raises ValueError for one that it does not take. None: there is none.
            defaults: Members for Triton that a request may leave out.
            name: That the answer gets as its id.
            at_s: Seconds since 1970: when it was made.
            prompt_tokens: About how many there are; a worker may tell.

        Raises:
            OutOfBoundsError: the request asks for what Triton's `generate` does not do.
        """
        asked = json.loads(body)
        self._chat = path == CHAT
        self._model: str = asked["model"]
        self._members = {**defaults, **_passed(asked), "stream": True, "exclude_input_in_output": True}
        self._prompt = _chat(asked, template) if self._chat else _prompt(asked.get("prompt"))
        self._stops = _Stops(_stops(asked.get("stop")))
        self.streamed = asked.get("stream") is True
        """Whether the client reads the answer event by event."""
        options = asked.get("stream_options")
        self._tells_usage = isinstance(options, dict) and options.get("include_usage") is True
        self._head = {"id": f"{'chatcmpl' if self._chat else 'cmpl'}-{name}", "created": at_s, "model": self._model}
        self._said: list[str] = []
        self._about_tokens, self._prompt_tokens, self._output_tokens, self._characters = round(prompt_tokens), 0, 0, 0
        self._finish = ""
        self._began = self._went_on = False

    def path(self, version: str) -> str:
        """At a Triton."""
        at = f"/v2/models/{quote(self._model, safe='')}"
        return f"{at}/versions/{version}/generate_stream" if version else f"{at}/generate_stream"

    def body(self) -> bytes:
        return json.dumps({**self._members, TRITON_PROMPT: self._prompt}).encode()

    @property
    def ended(self) -> bool:
        """Whether nothing that is still to come belongs to the answer."""
        return self._stops.found

    def take(self, event: bytes) -> bytes:
        """An event of Triton's, without the empty line behind it; returns what the client gets for it.

        Raises:
            WorkerError: it says so, or cannot be read.
        """
        if not event.startswith(_EVENT) or self.ended:
            return b""
        try:
            content = json.loads(event.removeprefix(_EVENT))
            if "error" in content:
                raise WorkerError(str(content["error"]))
            text = content[TRITON_TEXT]
            if not isinstance(text, str):
                raise TypeError(f"{TRITON_TEXT} is no text")
            self._count(content)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise WorkerError(f"the worker's event cannot be read: {error!r}") from error
        return self._says(self._stops.take(text))

    def end(self) -> bytes:
        """What the client of a stream gets at its end."""
        out = self._says(self._stops.left()) + self._chunk("", self._finished())
        if self._tells_usage:
            out += self._event({"choices": [], "usage": self._told()})
        return out + b"data: [DONE]" + _BREAK

    def whole(self) -> dict[str, Any]:
        """The answer for who does not read events."""
        self._says(self._stops.left())
        text = "".join(self._said)
        said: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": self._finished()}
        return {**self._head, "object": self._object(), "choices": [choice], "usage": self._told()}

    def forget(self) -> None:
        """The prompt, as nobody will ask for the rest."""
        self._prompt = ""

    def rest(self) -> bytes | None:
        """The request for what is still to be said; None: it cannot be asked for. A stream goes on once."""
        if self._went_on or self.ended:
            return None
        self._went_on = True
        left = dict(self._members)
        if isinstance(most := left.get("max_tokens"), int):
            left["max_tokens"] = most - self._output_tokens
            if left["max_tokens"] < 1:
                return None
        text = self._prompt + "".join(self._said) + self._stops.held
        return json.dumps({**left, TRITON_PROMPT: text}).encode()

    def usage(self) -> Usage:
        return Usage(self._prompt_tokens, 0.0, self._output_tokens)

    def _told(self) -> dict[str, int]:
        prompt = self._prompt_tokens or self._about_tokens
        output = self._output_tokens
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}

    def _count(self, content: Mapping[str, Any]) -> None:
        told = content.get(_OUTPUT_TOKENS, 1)
        self._output_tokens += told if isinstance(told, int) and 0 <= told <= MAX_PROMPT_TOKENS else 1
        prompt = content.get(_PROMPT_TOKENS, 0)
        if not self._prompt_tokens and isinstance(prompt, int) and 0 < prompt <= MAX_PROMPT_TOKENS:
            self._prompt_tokens = prompt
        finish = content.get(_FINISH)
        self._finish = finish if finish in ("stop", "length") else self._finish

    def _finished(self) -> str:
        if self._finish or self.ended:
            return "stop" if self.ended else self._finish
        most = self._members.get("max_tokens")
        return "length" if isinstance(most, int) and self._output_tokens >= most else "stop"

    def _says(self, text: str) -> bytes:
        if not text:
            return b""
        self._characters += len(text)
        if self._characters > _MOST_CHARACTERS:
            raise WorkerError(f"the answer has more than {_MOST_CHARACTERS} characters")
        self._said.append(text)
        return self._chunk(text, None)

    def _chunk(self, text: str, finish: str | None) -> bytes:
        began, self._began = self._began, True
        said: dict[str, Any] = {"text": text}
        if self._chat:
            role = {} if began else {"role": "assistant"}
            said = {"delta": {**role, **({"content": text} if text else {})}}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish}
        return self._event({"choices": [choice]})

    def _event(self, content: Mapping[str, Any]) -> bytes:
        head = {**self._head, "object": f"{self._object()}.chunk" if self._chat else self._object()}
        return b"data: " + json.dumps({**head, **content}).encode() + _BREAK

    def _object(self) -> str:
        return "chat.completion" if self._chat else "text_completion"


def triton_error(body: bytes) -> str:
    """What an answer says that is no stream."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return "the worker's answer is no stream of events"


class _Stops:
    """Texts at which an answer ends, before them. What may be the beginning of one is held."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self.held = ""
        self.found = False

    def take(self, text: str) -> str:
        """Returns what may be said now."""
        text, self.held = self.held + text, ""
        # Whichever is complete first, however the text is cut.
        found = [(place + len(stop), place) for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            self.found = True
            return text[: min(found)[1]]
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        at = len(text) - held
        self.held = text[at:]
        return text[:at]

    def left(self) -> str:
        left, self.held = self.held, ""
        return left


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of a text begin a stop."""
    most = min(len(text), len(stop) - 1)
    return next((size for size in range(most, 0, -1) if text.endswith(stop[:size])), 0)


def _passed(asked: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in asked.items():
        if name in _READ or name in _OF_NO_ACCOUNT or (not value and name not in _PASSED):
            continue
        if name in _PASSED:
            found |= _number(name, value)
        elif not (name in ("n", "best_of") and value == 1) and value != {"type": "text"}:
            words = f"{name}: {shown(json.dumps(value))} is not possible, as the model is served by Triton's generate"
            raise RefusedInputError(name, f"{words}; leave it out")
    return found | _number("max_tokens", asked.get("max_completion_tokens"))


def _number(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, int | float) or not -math.inf < value < math.inf:
        raise OutOfBoundsError(name, json.dumps(value), "is a number")
    return {name: value}


def _chat(asked: Mapping[str, Any], template: Template | None) -> str:
    if template is None:
        words = "the model has no chat template (models.NAME.proxy.openai.chat_template); use /v1/completions"
        raise RefusedInputError("messages", f"messages: {words}")
    messages = asked.get("messages")
    if not isinstance(messages, list) or not 0 < len(messages) <= _MOST_MESSAGES:
        raise RefusedInputError("messages", f"messages: is no list of 1 to {_MOST_MESSAGES} messages")
    try:
        return template([_message(each) for each in messages])
    except OutOfBoundsError:
        raise
    except ValueError as error:
        raise RefusedInputError("messages", f"messages: the model's chat template refuses them: {error}") from error


def _message(message: Any) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise OutOfBoundsError("messages", json.dumps(message), "has a role and content")
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(map(_part, content))
    if not isinstance(content, str):
        raise OutOfBoundsError("content", json.dumps(content), "is text, or a list of parts of type text")
    return {**message, "content": content}


def _part(part: Any) -> str:
    if not (isinstance(part, dict) and part.get("type") == "text" and isinstance(text := part.get("text"), str)):
        raise OutOfBoundsError(
            "content", json.dumps(part), 'is text, or a list of parts as {"type": "text", "text": …}'
        )
    return text


def _prompt(prompt: Any) -> str:
    if isinstance(prompt, list) and len(prompt) == 1:
        (prompt,) = prompt
    if not isinstance(prompt, str):
        raise OutOfBoundsError(
            "prompt", json.dumps(prompt), "is one text; tokens, and several at once, are not translated"
        )
    return prompt


def _stops(stop: Any) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else stop or []
    if not (
        isinstance(stops, list)
        and len(stops) <= _MOST_STOPS
        and all(isinstance(each, str) and 0 < len(each) <= _MOST_STOP_CHARACTERS for each in stops)
    ):
        rule = f"is a text of 1 to {_MOST_STOP_CHARACTERS} characters, or a list of at most {_MOST_STOPS} of them"
        raise OutOfBoundsError("stop", json.dumps(stop), rule)
    return tuple(stops)
