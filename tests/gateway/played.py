"""A swarm whose target answers chats with prepared replies: texts, reasoning and tool calls."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from cosine_engine.base import Choice
from cosine_engine.tree import SequenceTree
from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.scripted_engine import ScriptedEngine, best_choice
from cosine_lab.simulation.records import facts_of
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_p2p.text.chat_template import ChatTemplates
from cosine_p2p.text.tokenizer import TextTokenizer
from tests.gateway.gateways import QUICK

END: Final = 256
"""The end token; lower tokens are characters, and other characters become question marks."""
ASSISTANT: Final = "<|im_start|>assistant\n"
NO_THOUGHT: Final = "<think></think>"
TEMPLATE: Final = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}<think></think>{% endif %}{% endif %}"
)
"""As Qwen's models have it."""

Play = Callable[[str], str]
"""The reply to a rendered chat."""


class Letters(LetterCodec):
    """A codec of one token a character, with a template."""

    vocab_tokens = END + 1

    def __init__(self, template: str = TEMPLATE) -> None:
        self.named_tokens: Mapping[str, str] = {}
        self._templates = ChatTemplates({"default": template})

    def encode(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        return tuple(ord(letter) if ord(letter) < END else ord("?") for letter in text)

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(token) for token in tokens if token != END)

    chat_template = TextTokenizer.chat_template


class Player(ScriptedEngine):
    """An engine that writes the prepared reply after the last assistant marker."""

    def __init__(self, play: Play, codec: Letters | None = None) -> None:
        self._codec = codec or Letters()
        super().__init__(vocab_tokens=self._codec.vocab_tokens, context_tokens=131_072, pool_tokens=524_288)
        self._play = play

    def _choice(self, tree: SequenceTree, name: int, candidates: int) -> Choice:
        text = self._codec.decode(tree.tokens_to(name))
        begun = text.rfind(ASSISTANT) + len(ASSISTANT)
        begun += len(NO_THOUGHT) if text.startswith(NO_THOUGHT, begun) else 0
        reply = self._play(text[:begun]).removeprefix(text[begun:])
        (token, *_) = self._codec.encode(reply[:40]) or (END,)
        return best_choice(self.scores_of(token, text), candidates=candidates)

    def scores_of(self, token: int, text: str) -> list[float]:
        """The scores of all tokens after a text that the prepared reply continues with a token."""
        return [100.0 * (each == token) for each in range(self.vocab_tokens)]


def played_swarm(play: Play) -> Any:
    """Return a function that makes swarms of one verifier with prepared replies."""

    @asynccontextmanager
    async def swarm_of(**_: Any) -> AsyncIterator[SimulatedSwarm]:
        async with SimulatedSwarm(one_way_s=0.001, codec=Letters(TEMPLATE), facts=facts_of((END,))) as swarm:
            await swarm.verifier(Player(play), curve=QUICK)
            yield swarm

    return swarm_of


def looks_up(chat: str) -> str:
    """A model that reasons, looks up two cities, and reports the results."""
    if "tools\n" not in chat:
        return ("" if chat.endswith(NO_THOUGHT) else "<think>No tools.</think>") + "I do not know."
    results = chat.count("<|im_start|>tool\n")
    if not results:
        call = '<tool_call>{"name": "look_up", "arguments": {"city": "%s"}}</tool_call>'
        return f"<think>Two cities.</think>I look.\n{call % 'A'}{call % 'B'}"
    return f"Found {results} after {chat.count('<think>')} thought."
