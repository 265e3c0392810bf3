"""Tests of forced tool calls."""

import json
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.simulation import workload
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_p2p.replies.parts import CallBegun, Reply
from cosine_p2p.request.chat import Chat, NamedTool, ToolChoice
from cosine_p2p.request.results import Chunk, Generation
from cosine_p2p.text.prompt import encode_prompt
from cosine_p2p.text.reply_form import reply_form
from cosine_protocol.errors import OptionRefused
from cosine_protocol.request import Constraint, ConstraintKind, Sampling
from tests.engine.schemas import KEYS, SCHEMAS, check_json
from tests.scenes import in_virtual_time
from tests.swarm.tool_letters import END, ToolLetters, calling_engine
from tests.thoroughness import dear_examples

TOKENS: Final = 120
CODEC: Final = ToolLetters()
OBJECTS: Final = st.dictionaries(KEYS, SCHEMAS.map(json.loads), max_size=3).map(
    lambda properties: {"type": "object", "properties": properties, "required": list(properties)[::2]}
)
TOOLS: Final = st.dictionaries(st.sampled_from(["rest", "lease", "use", "set"]), OBJECTS, min_size=1, max_size=3)


def chat(tools: dict[str, Any], **options: Any) -> Chat:
    listed = [{"type": "function", "function": {"name": name, "parameters": tools[name]}} for name in tools]
    return Chat([{"role": "user", "content": "a tale:"}], tools=listed, **options)


@in_virtual_time
async def generated(
    asked: Chat, *, fidelities: tuple[float, ...] = (), **options: Any
) -> tuple[list[Chunk], Generation]:
    async with SimulatedSwarm(one_way_s=0.005, codec=CODEC, eos=(END,)) as swarm:
        await swarm.verifier(calling_engine())
        for number, fidelity in enumerate(fidelities):
            engine = calling_engine(fidelity, number, waits=False)
            await swarm.drafter(engine, domain=f"domain-{number}")
        client = await swarm.client(timeout_s=60.0)
        begun = await client.start(asked, **{"max_new_tokens": TOKENS, "seed": 7, **options})
        chunks = [chunk async for chunk in begun.chunks()]
        return chunks, begun.result()


@given(
    tools=TOOLS,
    fidelities=st.lists(st.sampled_from([0.3, 0.9]), max_size=2),
    temperature=st.sampled_from([0.0, 1.0]),
    in_parallel=st.booleans(),
    is_named=st.booleans(),
)
@dear_examples()
def test_a_call_that_must_come_is_that_of_plain_constrained_decoding(
    tools: dict[str, Any], fidelities: list[float], temperature: float, in_parallel: bool, is_named: bool
) -> None:
    choice = NamedTool(min(tools)) if is_named else ToolChoice.REQUIRED
    asked = chat(tools, tool_choice=choice, calls_in_parallel=in_parallel)
    grammar = reply_form(CODEC, asked, CODEC.render_chat(asked.messages, tools=asked.tools), is_told=False).grammar
    assert grammar is not None
    constraint = Constraint(ConstraintKind.GRAMMAR, grammar, (END,))
    sampling = Sampling(temperature=temperature, seed=7, constraint=constraint)
    expected = workload.plain_stream(
        calling_engine(), encode_prompt(CODEC, asked), sampling, tokens=TOKENS, eos=(END,)
    )
    for strategy in ("plain", "cosine"):
        chunks, done = generated(asked, fidelities=tuple(fidelities), temperature=temperature, strategy=strategy)
        reply = Reply.of(part for chunk in chunks for part in chunk.parts)
        assert (reply.content, reply.reasoning, reply.tool_calls) == (done.content, "", done.tool_calls)
        assert not done.content and done.tool_calls
        # Where no more than one call is wanted the text may end before its last token.
        assert done.token_ids == expected[: len(done.token_ids)]
        if done.finish_reason == "length":
            continue
        assert len(done.token_ids) == len(expected) or not in_parallel
        assert len(done.tool_calls) == 1 or (in_parallel and not is_named)
        for call in done.tool_calls:
            check_json(call.arguments, json.dumps(tools[call.name]))
            assert not is_named or call.name == min(tools)


ONE: Final = {"use": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}


def test_a_call_begins_before_its_arguments_are_there() -> None:
    chunks, done = generated(chat(ONE, tool_choice=ToolChoice.REQUIRED), strategy="plain")
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
def test_a_call_that_cannot_be_forced_is_refused_by_the_name_of_its_option(
    name: str, asked: Chat, options: dict[str, Any]
) -> None:
    with pytest.raises(OptionRefused, match=name):
        generated(asked, **options)
