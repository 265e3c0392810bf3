"""Chat templates: the choice among those of a tokenizer, and their input, as in transformers 5.24."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any, Final

from cosine_p2p.text.special_tokens import CONFIG, read_json_object
from cosine_p2p.text.template_process import TemplateProcesses
from cosine_p2p.text.tokenizer_files import ADDITIONAL_TEMPLATES
from cosine_protocol.errors import PromptRefused

TOOL_USE: Final = "tool_use"  # The template for chats with tools; otherwise `DEFAULT`.
DEFAULT: Final = "default"
REASONING: Final = ("reasoning_content", "thinking", "reasoning")
"""The fields of a message with reasoning, the standard one first; a template reads one of them."""
_OWN_FILE: Final = "chat_template.jinja"
_MARK: Final = "CONTINUE_FINAL_MESSAGE_TAG "
"""The mark at the end of the continued message, the same as in transformers, since templates may read it."""
KNOWS_DEVELOPER: Final = re.compile(r"""(['"])developer\1""")


class ChatTemplates:
    """The chat templates of a tokenizer, by name, rendered in separate processes at the time `now`."""

    def __init__(self, named: Mapping[str, str], *, now: Callable[[], datetime] = datetime.now) -> None:
        self._named = named
        self._now = now
        self._processes = TemplateProcesses()

    @classmethod
    def read(cls, files: Mapping[str, bytes]) -> "ChatTemplates":
        """Read templates from files, else from configs, as transformers. Raises `ValueError`, `RecursionError`."""
        own: dict[str, str] = {}
        for name in (_OWN_FILE, *(name for name in files if name.startswith(ADDITIONAL_TEMPLATES))):
            plain = name.removeprefix(ADDITIONAL_TEMPLATES).removesuffix(".jinja")
            if name in files:
                try:
                    own[DEFAULT if name == _OWN_FILE else plain] = files[name].decode()
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
        stated = (read_json_object(files, name).get("chat_template") for name in (CONFIG, "chat_template.json"))
        return cls(own or next((named for each in stated if (named := _by_name(each))), {}))

    def chosen(self, name: str | None, *, has_tools: bool) -> str:
        """Return the template of a name; any other text is a template itself. Raises `PromptRefused`."""
        if name is not None:
            return self._named.get(name, name)
        if not self._named:
            raise PromptRefused("The target has no chat template; send plain text, without --chat or messages.")
        found = self._named.get(TOOL_USE) if has_tools else None
        if found is None:
            found = self._named.get(DEFAULT)
        if found is None:
            raise PromptRefused(f"The target has several chat templates; name one of {', '.join(self._named)}.")
        return found

    def render(
        self,
        messages: Sequence[Any],
        *,
        tools: Sequence[Any] | None,
        documents: Sequence[Any] | None,
        add_generation_prompt: bool,
        continue_final_message: bool | str,
        template: str | None,
        values: Mapping[str, Any],
    ) -> str:
        """Return the text of a chat. Raises `PromptRefused`, with the template's message if any."""
        text = self.chosen(template, has_tools=tools is not None)
        try:
            chat, given, sources, more = json.loads(
                json.dumps([list(messages), tools, documents, dict(values)], default=_plain)
            )
        except (ValueError, TypeError, RecursionError):
            raise PromptRefused("The chat has something that is neither text, number, list nor object.") from None
        if not chat:
            raise PromptRefused("The chat has no message; give at least one.")
        for what, listed in (("messages", chat), ("tools", given or []), ("documents", sources or [])):
            if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
                raise PromptRefused(f"The {what} of a chat must be a list of objects.")
        chat = [_with_reasoning({key: value for key, value in each.items() if value is not None}) for each in chat]
        field = continue_final_message if isinstance(continue_final_message, str) else "content"
        said = _mark(chat[-1], field, text) if continue_final_message else ""
        rendered = self._processes.render(
            text,
            more
            | {
                "messages": chat,
                "tools": given,
                "documents": sources,
                "add_generation_prompt": add_generation_prompt and not continue_final_message,
            },
            now=self._now().isoformat(),
        )
        return _cut(rendered, said) if continue_final_message else rendered


def _by_name(stated: Any) -> dict[str, str]:
    if isinstance(stated, str):
        return {DEFAULT: stated}
    if isinstance(stated, list):
        stated = {each.get("name"): each.get("template") for each in stated if isinstance(each, dict)}
    if not isinstance(stated, dict):
        return {}
    return {name: text for name, text in stated.items() if isinstance(name, str) and isinstance(text, str)}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    for method in ("model_dump", "item"):  # Of pydantic and numpy.
        if callable(found := getattr(value, method, None)):
            return found()
    return f"<{type(value).__name__}>"


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    reasoning = next((message[name] for name in REASONING if name in message), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _mark(message: dict[str, Any], field: str, template: str) -> str:
    """Mark the end of a message's field and return its text. Raises `PromptRefused` if it cannot be continued."""
    said = message.get(field)
    names = [name for name in REASONING if message.get(name) == said] if field in REASONING else [field]
    if said is None or not any(name in template for name in names):
        raise PromptRefused(f"The final message cannot be continued: it has no {field} that the template reads.")
    if isinstance(said, list):
        part = next((each for each in reversed(said) if isinstance(each, dict) and "text" in each), None)
        if part is None:
            raise PromptRefused("The final message cannot be continued: no part of it is text.")
        said = part["text"]
        part["text"] = f"{said}{_MARK}"
    else:
        message |= dict.fromkeys(names, f"{said}{_MARK}")
    return str(said)


def _cut(rendered: str, said: str) -> str:
    """Return a rendered chat up to its mark. Raises `PromptRefused` if the template has changed the message."""
    mark = _MARK.strip()
    if said.strip() not in rendered or mark not in rendered:
        raise PromptRefused("The final message cannot be continued: the target's chat template changes its text.")
    place = rendered.rindex(mark)
    before = rendered[:place]
    # A template that strips texts also strips the space of the mark.
    return before if rendered.startswith(_MARK, place) else before.rstrip()
