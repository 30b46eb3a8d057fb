"""What a stream of OpenAI's API has said so far, and how another server is asked for the rest. Pure.

The rest of a chat is asked for as vLLM, SGLang and llama.cpp have it: what was said is the last message, the
assistant's, which is to be continued. Only requests are resumed of which every member is known to mean the same for a
part of the answer as for the whole.
"""

import json
from typing import Any

from balancer.extproc.names import CHAT
from balancer.extproc.prompts import MOST_TOKENS

MOST_CHARACTERS = 2**20
"""A stream that has said more is not resumed."""
_EVENT = b"data: "
_MARK_OF_UTF_8 = b"\xef\xbb\xbf"
_CONTINUE = {"add_generation_prompt": False, "continue_final_message": True}
_KNOWN = frozenset(
    (
        *("model", "messages", "prompt", "stream", "stream_options", *MOST_TOKENS),
        *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "ignore_eos", "n"),
        *("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias"),
        *("user", "metadata", "store", "service_tier", "cache_salt", "priority"),
    )
)


class Said:
    def __init__(self, path: str, body: bytes) -> None:
        """`path` and `body` of the request, which was understood already."""
        self._chat = path == CHAT
        self._body = body
        self._parts: list[str] = []
        """Texts, of which servers send one for each token."""
        self._characters = 0
        self._plain = True
        """So far all that was said is text of one answer."""
        self._ended = False
        """What comes after all text was said: an answer is complete."""
        self._first: dict[str, Any] = {}
        """Members of the first event that all have."""
        self._before: int | None = None
        """Tokens said by the worker before; None: it is the first."""

    def take(self, event: bytes) -> bytes:
        """An event, without the empty line behind it; returns it as the client is to have it."""
        if not self._plain or not event.startswith(_EVENT + b"{"):
            return event
        try:
            content = json.loads(event[len(_EVENT) :])
            self._read(content)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self._forget()
            return event
        if self._before is None:
            self._first = self._first or {name: content[name] for name in ("id", "created") if name in content}
            return event
        return _EVENT + json.dumps(self._as_before(content)).encode()

    def rest(self) -> bytes | None:
        """The request for what is still to be said; None: it cannot be asked for. A stream goes on once."""
        if self._before is not None or not self._plain or self._ended:
            return None
        self._before = len(self._parts)
        if not self._parts:
            return self._body
        try:
            return self._continued(json.loads(self._body.removeprefix(_MARK_OF_UTF_8)))
        except (ValueError, TypeError, KeyError, AttributeError):  # what a worker answered all the same
            return None

    def _continued(self, asked: dict[str, Any]) -> bytes | None:
        if not (asked.keys() <= _KNOWN and asked.get("n") in (None, 1)):
            return None
        text, left = "".join(self._parts), dict(asked)
        for name in MOST_TOKENS:
            if isinstance(most := asked.get(name), int):
                left[name] = most - len(self._parts)
                if left[name] < 1:
                    return None
        if self._chat:
            messages = asked["messages"]
            if not messages or messages[-1].get("role") == "assistant":
                return None
            left |= {"messages": [*messages, {"role": "assistant", "content": text}], **_CONTINUE}
        elif isinstance(asked["prompt"], str):
            left["prompt"] = asked["prompt"] + text
        else:
            return None
        return json.dumps(left).encode()

    def _read(self, content: dict[str, Any]) -> None:
        choices = content["choices"]
        if not choices:
            return  # it tells the tokens
        (choice,) = choices
        said = choice["delta"] if self._chat else {"content": choice["text"]}
        if choice.get("index", 0) != 0 or any(said[name] for name in said if name not in ("role", "content")):
            raise ValueError("more than a text is said")
        if text := said.get("content"):
            if not isinstance(text, str):
                raise ValueError("what is said is no text")
            self._characters += len(text)
            if self._characters > MOST_CHARACTERS:
                raise ValueError("it is too long to be kept")
            self._parts.append(text)
        self._ended = self._ended or choice.get("finish_reason") is not None

    def _forget(self) -> None:
        self._plain, self._parts, self._body = False, [], b""

    def _as_before(self, content: dict[str, Any]) -> dict[str, Any]:
        """As the worker before would have gone on."""
        assert self._before is not None
        content |= self._first
        if isinstance(usage := content.get("usage"), dict):
            # Of its prompt, what was said before is a part.
            for name, more in (("prompt_tokens", -self._before), ("completion_tokens", self._before)):
                if isinstance(usage.get(name), int):
                    usage[name] = max(usage[name] + more, 0)
        return content
