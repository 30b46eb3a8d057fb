"""How a chat becomes a text, by templates as models bring them."""

import json
from pathlib import Path
from typing import Any

import pytest

from balancer.files.regular import UnreadableError
from balancer.proxy.prompts.chat_template import ChatError, ChatTemplate, read_template

SOURCE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
QUESTION = {"role": "user", "content": "When?"}


def written(path: Path, **content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    "source", [SOURCE, [{"name": "tools", "template": "x"}, {"name": "default", "template": SOURCE}]]
)
def test_a_model_s_config_has_template_and_tokens(source: Any, tmp_path: Path) -> None:
    file = written(
        tmp_path / "tokenizer_config.json", chat_template=source, bos_token={"content": "<s>"}, eos_token="</s>"
    )
    template = read_template(file)
    assert template.prompt([QUESTION]) == "[user]When?</s>[assistant]", "the server's tokenizer adds what begins a text"
    assert template == read_template(file)


def test_a_template_may_be_a_file_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "chat_template.jinja"
    file.write_text("{% for message in messages %}\n{{ message.content | tojson }}\n{% endfor %}")
    assert read_template(file).prompt([{"role": "user", "content": "<é>"}]) == '"<é>"\n'


def test_a_template_may_refuse_in_its_words() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ChatError, match=r"^roles must alternate$"):
        template.prompt([QUESTION])


@pytest.mark.parametrize(
    "source", ["{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}", "{{ range(10 ** 9) | list }}"]
)
def test_a_template_reaches_nothing_beyond_its_messages(source: str) -> None:
    with pytest.raises(ChatError):
        ChatTemplate(source).prompt([QUESTION])


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"chat_template": 5}', '{"chat_template": "{% for"}'])
def test_what_is_no_template_is_said(content: str, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer_config.json"
    file.write_text(content)
    with pytest.raises(ChatError):
        read_template(file)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError):
        read_template(tmp_path / "chat_template.jinja")
