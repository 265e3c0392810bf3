"""A chat as a program asks for it: its messages, and how the target's template shall be used."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import Any, Final

Message = Mapping[str, Any]  # `{"role", "content"}`, and what else a template may read, such as `tool_calls`.
RESERVED: Final = frozenset({"add_generation_prompt", "continue_final_message", "messages", "template", "tools"})
"""Names that options of a template may not have."""


class ToolChoice(Enum):
    """Whether the answer calls tools: optionally, never, or at least once."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The answer calls the function of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A prompt of messages, for the target's chat template.

    `tools` are functions as in OpenAI's chats; `tool_choice` says if one may, must or must not be called, or names
    one that must. Without `calls_in_parallel` at most one is called. `documents` are objects with title and text,
    `template_options` further arguments of the template; `template` names one of several. With
    `continue_final_message` the answer continues the last message; None: if that is the assistant's. Without
    `add_generation_prompt` nobody is asked to speak.
    """

    messages: Sequence[Message]
    _: KW_ONLY
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: ToolChoice | NamedTool = ToolChoice.AUTO
    calls_in_parallel: bool = True
    documents: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool | None = None
    template: str | None = None
    template_options: Mapping[str, Any] = field(default_factory=dict)
