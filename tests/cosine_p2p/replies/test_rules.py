"""Tests that grammars of forced calls generate valid calls in each format."""

import json
import random
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import groupby
from typing import Any, Final

import pytest
from jsonschema import validate
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from cosine_p2p.replies.calls import ForcibleFormat
from cosine_p2p.replies.dialects import FORMATS, GENERIC, Dialect
from cosine_p2p.replies.harmony import TOLD as OF_CHANNELS
from cosine_p2p.replies.parts import Part, Reply
from cosine_p2p.replies.reader import ReplyReader
from cosine_p2p.replies.reasoning import KNOWN, ReasoningMarks
from cosine_p2p.replies.rules import TooManyRules
from tests.thoroughness import quick_first

llguidance = pytest.importorskip("llguidance")

THINK: Final = KNOWN[-1]
TOOLS: Final[dict[str, Any]] = {
    "now": None,
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "days": {"type": "integer", "minimum": 1, "maximum": 99},
            "unit": {"enum": ["C", "F"]},
            "code": {"type": "string", "pattern": "^[a-c]{2}$"},
            "places": {"type": "array", "items": {"$ref": "#/$defs/place"}, "minItems": 1, "maxItems": 2},
            "near": {"$ref": "#/$defs/place"},
            "is_new": {"type": "boolean"},
        },
        "required": ["city", "days"],
        "$defs": {"place": {"type": "string", "maxLength": 4}},
    },
    "search.all": {"type": "object", "properties": {"limit": {"type": "number", "minimum": 0, "maximum": 1e6}}},
}
MARKS: Final = ("[TOOL_CALLS]", "[ARGS]", "<think>", "</think>")
BRIEF: Final = frozenset('"}])<,|\n[')
"""Letters that end a text."""
CHANNEL_ENDS: Final = "<|end|><|start|>assistant"
END: Final = "<end>"
MAX_TOKENS: Final = 3000


@cache
def tokenizer(*, has_special: bool) -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: at for at, letter in enumerate(letters)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    told = {mark.strip() for _, form in FORMATS for mark in form.told if mark.startswith("<") and "|" in mark}
    told |= {mark for marks in KNOWN for mark in marks.told} | set(MARKS)
    tags = sorted(mark for mark in told if mark.endswith(("|>", "]", ">")) and " " not in mark and "\n" not in mark)
    made.add_special_tokens([AddedToken(END, special=True)])
    if has_special:
        made.add_special_tokens(
            [AddedToken(each, special=True) for each in dict.fromkeys((*tags, *OF_CHANNELS[:2], *OF_CHANNELS[3:]))]
        )
    return made


@cache
def known_to_llguidance(made: Tokenizer) -> Any:
    return llguidance.LLTokenizer(made.to_str(), eos_token=made.token_to_id(END))


@cache
def readable(made: Tokenizer) -> frozenset[int]:
    """Return printable letters, and special tokens except the end."""
    names = {token: name for name, token in made.get_vocab().items()}
    special = made.get_added_tokens_decoder().keys() - {made.token_to_id(END)}
    return frozenset(token for token, name in names.items() if name in _READABLE or token in special)


def split(made: Tokenizer, text: str) -> Sequence[str | int]:
    special = {token.content: at for at, token in made.get_added_tokens_decoder().items()}
    pieces: list[str | int] = []
    while text:
        found = [(text.find(mark), -len(mark), mark) for mark in special if mark in text]
        place, _, mark = min(found, default=(len(text), 0, ""))
        pieces += [text[:place]] if place else []
        pieces += [special[mark]] if mark else []
        text = text[place + len(mark) :]
    return pieces


def written(made: Tokenizer, grammar: str, marks: Sequence[str], rng: random.Random) -> list[tuple[str, bool]]:
    """Generate a random text of the grammar, sometimes with marks; each special token is a piece."""
    grammar_of = llguidance.LLMatcher.grammar_from_lark
    matcher = llguidance.LLMatcher(known_to_llguidance(made), grammar_of(grammar), log_level=0)
    assert not matcher.is_error(), (matcher.get_error(), grammar)
    special, end, brief = made.get_added_tokens_decoder(), made.token_to_id(END), set(map(made.token_to_id, BRIEF))
    tokens: list[int] = []
    vocabulary = made.get_vocab_size()
    while not (matcher.is_accepting() and (rng.random() < 0.3 or matcher.is_stopped())):
        assert len(tokens) < MAX_TOKENS
        mark = made.encode(rng.choice(marks), add_special_tokens=False).ids
        if rng.random() < 0.2 and matcher.deep_copy().try_consume_tokens(mark) == len(mark):
            matcher.try_consume_tokens(mark)
            tokens += mark
            continue
        mask = matcher.compute_logit_bias()
        allowed = [token for token, bias in enumerate(mask) if bias and token != end and token < vocabulary]
        allowed = [each for each in allowed if each in readable(made)] or allowed
        # Those that end a text more often than others.
        weights = [30 if each in special or each in brief else 1 for each in allowed]
        (token,) = rng.choices(allowed, weights)
        assert matcher.try_consume_tokens([token]) == 1
        tokens.append(token)
    pieces: list[tuple[str, bool]] = []
    for is_special, run in groupby(tokens, key=special.__contains__):
        here = list(run)
        pieces += [(special[token].content, True) for token in here] if is_special else [(made.decode(here), False)]
    return pieces


_READABLE: Final = frozenset(chr(code) for code in range(33, 127)) | {"Ġ", "Ċ"}


def read(
    pieces: Sequence[tuple[str, bool]], dialect: Dialect, *, is_thinking: bool = False, tools: Any = TOOLS
) -> Reply:
    reader = ReplyReader(dialect, tools=tools, call_id=str, is_thinking=is_thinking)
    parts: list[Part] = []
    for text, is_special in pieces:
        parts += reader.add(text, is_special=is_special)
    return Reply.of([*parts, *reader.finish()])


FORMS: Final = list(dict.fromkeys(form for _, form in FORMATS))
KINDS: Final = {type(form): form for form in FORMS}
"""A form of each kind."""
FORCIBLE: Final = [form for form in FORMS if isinstance(form, ForcibleFormat)]


@pytest.mark.parametrize("has_special", [True, False])
@pytest.mark.parametrize(
    "form",
    [GENERIC, None, *KINDS.values(), *quick_first([f for f in FORCIBLE if f not in KINDS.values()], quick=0)],
)
def test_a_forced_reply_calls_a_tool_with_arguments_that_its_schema_allows(form: Any, has_special: bool) -> None:
    # Channels are made of special tokens in every tokenizer that has any.
    made, rng = tokenizer(has_special=has_special or form is None), random.Random(str(form))
    for number in range(6):
        marks: ReasoningMarks | None = THINK if number % 3 else None
        is_thinking = number % 3 == 2
        dialect = (Dialect(form, marks) if form else Dialect(None, None, in_channels=True)).forcible
        several = number % 2 == 0
        grammar = dialect.grammar(
            lambda text: split(made, text), TOOLS, several=several, is_thinking=is_thinking and form is not None
        )
        pieces = written(
            made,
            grammar,
            [
                *filter(
                    None, (*THINK.told, *(dialect.calls.told if dialect.calls else (*OF_CHANNELS, CHANNEL_ENDS)))
                )
            ],
            rng,
        )
        reply = read(pieces, dialect, is_thinking=is_thinking and form is not None)
        told = "".join(text for text, _ in pieces)
        assert reply.tool_calls and not reply.content, told
        assert several or len(reply.tool_calls) == 1
        for call in reply.tool_calls:
            validate(json.loads(call.arguments), TOOLS[call.name] or {"type": "object"})


ENDLESS: Final[dict[str, Any]] = {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}}


@pytest.mark.parametrize("form", [*KINDS.values(), None])
@pytest.mark.parametrize(
    "schema",
    [
        ENDLESS,
        {"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}] * 50}}},
        {"properties": {"a": {"type": [{}], "enum": "x"}, "b": 3}, "required": [{}, 1, "a"]},
        {"properties": {"a": {"type": "string", "pattern": "("}, "b": {"type": "array", "minItems": 10**9}}},
        {"properties": [], "required": "a", "type": 3},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    ],
)
def test_no_schema_takes_long_or_is_an_error_of_ours(form: Any, schema: dict[str, Any]) -> None:
    dialect = Dialect(form, THINK) if form else Dialect(None, None, in_channels=True)
    made = tokenizer(has_special=True)
    with suppress(TooManyRules):
        grammar = dialect.forcible.grammar(
            lambda text: split(made, text), {"f": schema}, several=True, is_thinking=False
        )
        assert grammar.startswith("start: ")
    reader = ReplyReader(dialect, tools={"f": schema}, call_id=str)
    for mark in form.told if form else ():
        reader.add(f"{mark}f")
    reader.finish()
