"""Tests of forced tool calls."""

import json
from dataclasses import replace
from typing import Any, Final

import pytest

from cosine_lab.simulation.records import facts_of
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_p2p.replies.parts import CallBegun
from cosine_p2p.request.chat import Chat, NamedTool, ToolChoice
from cosine_p2p.request.results import Chunk, Generation
from cosine_protocol.errors import OptionRefused
from tests.engine.schemas import check_json
from tests.scenes import in_virtual_time
from tests.swarm.tool_letters import END, ToolLetters, calling_engine

TOKENS: Final = 120
CODEC: Final = ToolLetters()


def chat(tools: dict[str, Any], **options: Any) -> Chat:
    listed = [{"type": "function", "function": {"name": name, "parameters": tools[name]}} for name in tools]
    return Chat([{"role": "user", "content": "a tale:"}], tools=listed, **options)


@in_virtual_time
async def generated(asked: Chat, *, fidelity: float = 0.0, **options: Any) -> tuple[list[Chunk], Generation]:
    """Generate a reply, with a drafter of a fidelity if it is not 0."""
    async with SimulatedSwarm(one_way_s=0.005, codec=CODEC, facts=facts_of((END,))) as swarm:
        await swarm.verifier(calling_engine())
        if fidelity:
            await swarm.drafter(calling_engine(fidelity, waits=False))
        client = await swarm.client(timeout_s=60.0)
        begun = await client.start(asked, **{"max_new_tokens": TOKENS, "seed": 7, **options})
        chunks = [chunk async for chunk in begun.chunks()]
        return chunks, begun.result()


ONE: Final = {"use": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}


def test_a_call_is_the_same_with_any_drafts_and_begins_before_its_arguments_are_there() -> None:
    asked = chat(ONE, tool_choice=ToolChoice.REQUIRED)
    chunks, done = generated(asked, strategy="plain")
    drafted = generated(asked, fidelity=0.9, strategy="cosine")[1]
    assert drafted.token_ids == done.token_ids and drafted.swarm.accepted
    check_json(done.tool_calls[0].arguments, json.dumps(ONE["use"]))
    begun = next(index for index, chunk in enumerate(chunks) if any(isinstance(p, CallBegun) for p in chunk.parts))
    assert begun < len(chunks) - 3 and "use" in done.text and "[TOOL" not in done.text
    (identity,) = {call.call_id for call in done.tool_calls[:1]}
    assert len(identity) == 9 and identity.isalnum()


UNKNOWN: Final = {"use": {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}, "required": ["a"]}}
OTHERS: Final[list[dict[str, Any]]] = [{"schema": {}}, {"regex": "a"}, {"bad_words": ["a"]}, {"min_tokens": 3}]
REFUSED: Final[list[tuple[str, Chat, dict[str, Any]]]] = [
    # Nothing else says what such a text must be.
    *((next(iter(option)), chat(ONE, tool_choice=ToolChoice.REQUIRED), option) for option in OTHERS),
    ("tool_choice", chat(ONE, tool_choice=NamedTool("lease")), {}),
    ("tool_choice", replace(chat(ONE, tool_choice=ToolChoice.REQUIRED), tools=None), {}),
    ("tools", chat(UNKNOWN, tool_choice=ToolChoice.REQUIRED), {}),
]


@pytest.mark.parametrize(("name", "asked", "options"), REFUSED)
def test_a_call_that_cannot_be_forced_names_the_option(name: str, asked: Chat, options: dict[str, Any]) -> None:
    with pytest.raises(OptionRefused, match=name):
        generated(asked, **options)
