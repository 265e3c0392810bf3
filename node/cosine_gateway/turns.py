"""The turns of a conversation for chat templates, assembled from the smaller items of other APIs.

A template expects one system message and then alternating turns: many refuse anything else, and some silently drop
it. Pure.
"""

from typing import Any, Final

from cosine_p2p.request.chat import Message

BETWEEN: Final = "\n"
"""The separator between the pieces of a turn."""


class ConversationTurns:
    """Collects pieces in order; `messages` are the resulting turns.

    Consecutive pieces of a speaker form one turn. System text after the first turn becomes part of a user turn.
    """

    def __init__(self) -> None:
        self._instructions: list[str] = []
        self._turns: list[dict[str, Any]] = []
        self._called: dict[str, str] = {}

    @property
    def messages(self) -> list[Message]:
        """The system message, if any, and all turns."""
        head = [{"role": "system", "content": BETWEEN.join(self._instructions)}] if self._instructions else []
        return [*head, *self._turns]

    def instruct(self, text: str) -> None:
        """Add text of the system."""
        if self._turns:
            self.say("user", text)
        else:
            self._instructions.append(text)

    def say(self, role: str, text: str) -> None:
        """Add text of the user or the assistant."""
        self._add(role, "content", text)

    def reason(self, text: str) -> None:
        """Add reasoning of the assistant."""
        self._add("assistant", "reasoning_content", text)

    def call(self, call_id: str, name: str, arguments: str) -> None:
        """Add a function call with JSON arguments."""
        self._called[call_id] = name
        function = {"name": name, "arguments": arguments}
        calls = self._turn_of("assistant").setdefault("tool_calls", [])
        calls.append({"id": call_id, "type": "function", "function": function})

    def answer(self, call_id: str, text: str) -> None:
        """Add the result of a call, with the function's name, which some templates need."""
        name = {"name": self._called[call_id]} if call_id in self._called else {}
        self._turns.append({"role": "tool", "tool_call_id": call_id, **name, "content": text})

    def _add(self, role: str, field: str, text: str) -> None:
        turn = self._turn_of(role)
        turn[field] = BETWEEN.join(each for each in (turn.get(field), text) if each)

    def _turn_of(self, role: str) -> dict[str, Any]:
        """Return the current turn of a speaker, or a new one."""
        if not self._turns or self._turns[-1]["role"] != role:
            self._turns.append({"role": role, "content": ""})
        return self._turns[-1]
