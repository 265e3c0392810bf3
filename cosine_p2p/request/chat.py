"""A chat as a program asks for it: its messages, and how the target's template shall be used."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

Message = Mapping[str, Any]
"""`{"role", "content"}`, and what else a template may read: `tool_calls`, `name`, `reasoning_content`."""
RESERVED: Final = frozenset({"add_generation_prompt", "continue_final_message", "messages", "template", "tools"})
"""What no option of a template may be called: a chat has them itself."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A prompt of messages, for the target's chat template.

    `tools` are JSON schemas, `documents` objects with title and text, `template_options` what else the template
    takes, such as `enable_thinking`; `template` names one of several. With `continue_final_message` the answer goes
    on with the last message; None is so where that is the assistant's. Without `add_generation_prompt` nobody is
    asked to speak.
    """

    messages: Sequence[Message]
    _: KW_ONLY
    tools: Sequence[Mapping[str, Any]] | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool | None = None
    template: str | None = None
    template_options: Mapping[str, Any] = field(default_factory=dict)
