"""How a chat becomes the text of a prompt: by the Jinja template that comes with a model. It runs in a sandbox."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from balancer.files.regular import read_regular

Message = Mapping[str, Any]
_BEGIN, _END = "bos_token", "eos_token"


class ChatError(ValueError):
    """A chat that the template does not take, or a file that is no template; the message says why."""


class ChatTemplate:
    """Two of equal source are equal."""

    def __init__(self, source: str, tokens: Mapping[str, str] | None = None) -> None:
        """`source` as Hugging Face's models have it; `tokens`: texts of special tokens, by the names that it uses.

        Raises:
            ChatError: it is no template.
        """
        # It takes a tenth of a second and some megabytes, which most balancers do without.
        from jinja2 import TemplateError  # noqa: PLC0415
        from jinja2.ext import loopcontrols  # noqa: PLC0415
        from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

        self._of = source, dict(tokens or {})
        # As transformers sets it up, for which templates are written.
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _raise, "strftime_now": lambda form: datetime.now().strftime(form)}
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ChatError(f"is no Jinja template: {error}") from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChatTemplate) and self._of == other._of

    def __hash__(self) -> int:
        source, _ = self._of
        return hash(source)

    def prompt(self, messages: Sequence[Message]) -> str:
        """Up to where the assistant is to go on, without the token that begins a text: a server's tokenizer adds it.

        Raises:
            ChatError: the template refuses these messages, or fails at them.
        """
        _, tokens = self._of
        try:
            text = self._template.render(**tokens, messages=messages, add_generation_prompt=True)
        except Exception as error:  # a template may fail in any way at what a client sends
            raise ChatError(str(error)) from error
        return text.removeprefix(tokens.get(_BEGIN, ""))


def read_template(file: Path) -> ChatTemplate:
    """From a template as it is, or from a model's `tokenizer_config.json`.

    Raises:
        UnreadableError: there is no such file.
        ChatError: it has no template.
    """
    text = read_regular(file).decode(errors="replace")
    if file.suffix != ".json":
        return ChatTemplate(text)
    try:
        config = json.loads(text)
        source = config.get("chat_template")
        if isinstance(source, list):
            source = next((each["template"] for each in source if each["name"] == "default"), None)
        tokens = {name: _text(config[name]) for name in (_BEGIN, _END) if config.get(name)}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ChatError(f"is no tokenizer_config.json: {error}") from error
    if not isinstance(source, str):
        raise ChatError("has no chat_template; name the file that has it, such as chat_template.jinja beside it")
    return ChatTemplate(source, tokens)


def _text(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(words: str) -> NoReturn:
    raise ChatError(words)
