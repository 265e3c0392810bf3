"""The turns of a conversation as chat templates know them, put together of the smaller pieces of other APIs.

A template knows one message of the system, which comes first, and then turns that alternate: many refuse others,
and some leave out in silence what stands where they expect something else. Pure.
"""

from typing import Any, Final

from cosine_p2p.request.chat import Message

BETWEEN: Final = "\n"
"""Stands between the pieces of a turn, as between the parts of a chat's message."""


class Turns:
    """Takes pieces in their order; `messages` are the turns they make.

    Pieces of the same speaker that follow each other are one turn. What the system says after the conversation has
    begun is part of the user's turn.
    """

    def __init__(self) -> None:
        self._instructions: list[str] = []
        self._turns: list[dict[str, Any]] = []
        self._called: dict[str, str] = {}

    @property
    def messages(self) -> list[Message]:
        """All turns, after the system's."""
        head = [{"role": "system", "content": BETWEEN.join(self._instructions)}] if self._instructions else []
        return [*head, *self._turns]

    def instruct(self, text: str) -> None:
        """The system says something."""
        if self._turns:
            self.say("user", text)
        else:
            self._instructions.append(text)

    def say(self, role: str, text: str) -> None:
        """The user or the assistant says something."""
        self._add(role, "content", text)

    def reason(self, text: str) -> None:
        """The assistant thinks something."""
        self._add("assistant", "reasoning_content", text)

    def call(self, call_id: str, name: str, arguments: str) -> None:
        """The assistant calls a function with arguments in JSON."""
        self._called[call_id] = name
        function = {"name": name, "arguments": arguments}
        calls = self._turn_of("assistant").setdefault("tool_calls", [])
        calls.append({"id": call_id, "type": "function", "function": function})

    def answer(self, call_id: str, text: str) -> None:
        """A call has a result; some templates want to know of which function."""
        name = {"name": self._called[call_id]} if call_id in self._called else {}
        self._turns.append({"role": "tool", "tool_call_id": call_id, **name, "content": text})

    def _add(self, role: str, field: str, text: str) -> None:
        turn = self._turn_of(role)
        turn[field] = BETWEEN.join(each for each in (turn.get(field), text) if each)

    def _turn_of(self, role: str) -> dict[str, Any]:
        """The turn of a speaker that is under way, or a new one."""
        if not self._turns or self._turns[-1]["role"] != role:
            self._turns.append({"role": role, "content": ""})
        return self._turns[-1]
