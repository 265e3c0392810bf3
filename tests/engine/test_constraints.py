"""Constraints: the allowed tokens are those of the grammar after a path, in any order of queries."""

import asyncio
import json
import random
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_engine import zoo
from cosine_engine.base import Row
from cosine_engine.constraints import grammars as module
from cosine_engine.constraints.grammars import (
    MAX_COMPILED,
    MAX_FORCED_BYTES,
    MAX_KEPT_BYTES,
    MAX_ONE_BYTES,
    USUAL_JSON,
    Grammars,
    GrammarTooComplex,
    Mask,
    Tried,
    tried,
)
from cosine_engine.lanes.engine import LaneEngine
from cosine_engine.torch.engine import TorchEngine
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_p2p.text.tokenizer import load_tokenizer
from cosine_protocol.request import Constraint, ConstraintKind, Sampling
from tests.engine.engines import llama_engine
from tests.engine.gguf_models import tiny_folder
from tests.engine.letter_grammars import END, LETTERS, fault, letter_grammars, text_of
from tests.engine.random_serving import Asked, serve_alone, serve_together
from tests.engine.schemas import SCHEMAS, check_json
from tests.engine.staged import InStep, in_step, ranges
from tests.engine.tiny_models import tiny_llama
from tests.thoroughness import quick_first

SCHEMA, REGEX, GRAMMAR = ConstraintKind
GRAMMARS = letter_grammars()
VOCAB_TOKENS = END + 1


def tokens_of(text: str) -> tuple[int, ...]:
    return tuple(LETTERS.index(letter) for letter in text)


def allowed(mask: Mask | None) -> set[str]:
    """Return the texts of the tokens in a mask; `.` is the end."""
    assert mask is not None
    bits = np.unpackbits(mask, bitorder="little")[:VOCAB_TOKENS]
    return {"." if token == END else LETTERS[token] for token in np.flatnonzero(bits)}


def constraint(kind: ConstraintKind, text: str, ends: tuple[int, ...] = (END,)) -> Constraint:
    return Constraint(kind, text, ends)


@pytest.mark.parametrize(
    ("kind", "text", "output", "expected"),
    [
        (REGEX, "ab+", "", {"a"}),
        (REGEX, "ab+", "a", {"b"}),
        (REGEX, "ab+", "ab", {"b", "."}),
        (REGEX, "a", "a", {"."}),
        (GRAMMAR, 'start: "a" start "b" | "n"', "aa", {"a", "n"}),
        (GRAMMAR, 'start: "a" start "b" | "n"', "aanb", {"b"}),
        (SCHEMA, '{"type": "array", "items": {"enum": [1]}, "maxItems": 2}', "[1", {",", "]", " "}),
        (SCHEMA, '{"const": true}', "tru", {"e"}),
    ],
)
def test_only_what_the_grammar_allows_may_come_and_the_end_only_where_it_may(
    kind: ConstraintKind, text: str, output: str, expected: set[str]
) -> None:
    [mask] = GRAMMARS.guide(constraint(kind, text)).masks(tokens_of(output), [()])
    assert allowed(mask) - {" "} == expected - {" "}


def test_a_grammar_that_no_token_can_go_on_with_fails_the_text() -> None:
    with pytest.raises(GrammarTooComplex):
        GRAMMARS.guide(constraint(REGEX, "[^a-z]x")).masks(tokens_of("1"), [()])


@given(data=st.data())
def test_masks_of_a_tree_are_those_of_its_paths_one_by_one(data: st.DataObject) -> None:
    """They are right next to paths that break the grammar, in any order, and as the kept output grows."""
    of = constraint(SCHEMA, data.draw(SCHEMAS))
    rng = random.Random(data.draw(st.integers(0, 999)))
    guide, output = GRAMMARS.guide(of), list[int]()
    for _ in range(6):
        paths = []
        for _ in range(rng.randrange(1, 6)):
            path = list[int]()
            for _ in range(rng.randrange(5)):
                [mask] = GRAMMARS.guide(of).masks([*output, *path], [()])
                honest = mask is not None and rng.random() < 0.9
                path.append(drawn(mask, rng) if honest else rng.randrange(VOCAB_TOKENS))
            paths.append(tuple(path))
        found = guide.masks(output, paths)
        for asked, mask in zip(paths, found, strict=True):
            [alone] = GRAMMARS.guide(of).masks([*output, *asked], [()])
            assert (mask is None) is (alone is None)
            assert mask is None or alone is None or np.array_equal(mask, alone)
        kept = rng.choice(paths)
        output += kept[: rng.randrange(len(kept) + 1)]


def drawn(mask: Mask | None, rng: random.Random) -> int:
    assert mask is not None
    return int(rng.choice(np.flatnonzero(np.unpackbits(mask, bitorder="little")[:VOCAB_TOKENS]).tolist()))


def check_speculation(
    engine: ScriptedEngine | TorchEngine | LaneEngine | InStep,
    schema: str,
    seed: int,
    temperature: float,
    *,
    tokens: int,
) -> None:
    """Check that a text with drafts equals the one without, and is valid if it ends."""
    sampling = Sampling(temperature=temperature, seed=seed, constraint=constraint(SCHEMA, schema))
    asked = Asked([1, 2, 3], sampling, drafted_below=VOCAB_TOKENS)
    asked.expected = serve_alone(engine, asked, tokens)
    text = [token for token, _ in asked.expected]
    if END in text:
        check_json(text_of(text[: text.index(END)]), schema)
        del asked.expected[text.index(END) + 1 :]
    assert serve_together(engine, [asked], at_once=1, seed=seed, tolerance=1e-3) == 0
    assert engine.open_sequences == 0


@given(schema=SCHEMAS, seed=st.integers(0, 99), temperature=st.sampled_from([0.0, 1.0]))
def test_a_text_that_ends_is_valid_and_that_of_plain_decoding_whatever_is_drafted(
    schema: str, seed: int, temperature: float
) -> None:
    engine = ScriptedEngine(vocab_tokens=VOCAB_TOKENS, grammars=GRAMMARS)
    check_speculation(engine, schema, seed, temperature, tokens=300)


def test_a_drafted_token_that_the_tokenizer_lacks_cannot_follow_and_ends_no_text() -> None:
    guide = GRAMMARS.guide(constraint(REGEX, "ab+"))
    paths = [tokens_of("a"), (*tokens_of("a"), VOCAB_TOKENS), (VOCAB_TOKENS + 50,), ()]
    known, *lacking, first = guide.masks((), paths)
    assert (allowed(known), lacking, allowed(first)) == ({"b"}, [None, None], {"a"})
    assert allowed(guide.masks(tokens_of("a"), [()])[0]) == {"b"}


@pytest.mark.parametrize(
    "make", [partial(TorchEngine, tiny_llama()), llama_engine, partial(in_step, tiny_folder(), ranges(1, 2))]
)
@pytest.mark.parametrize("temperature", quick_first([1.0, 0.0]))
def test_so_it_is_on_models_and_over_stages(
    make: Callable[..., TorchEngine | LaneEngine | InStep], temperature: float
) -> None:
    engine = make(pool_tokens=512, grammars=GRAMMARS)
    limited = {"a": {"type": "string", "maxLength": 5}, "b": {"enum": [1, 22]}}
    schema = {"type": "object", "properties": limited, "required": ["a", "b"], "additionalProperties": False}
    for seed in range(2):
        check_speculation(engine, json.dumps(schema), seed, temperature, tokens=120)


def test_under_a_constraint_that_is_refused_no_text_is_written() -> None:
    grammars, of = letter_grammars(), constraint(REGEX, "(")
    engine = ScriptedEngine(vocab_tokens=VOCAB_TOKENS, grammars=grammars)
    asyncio.run(grammars.prepare(of))
    sequence = engine.open(sampling=Sampling(constraint=of), prompt_tokens=1)
    [result] = engine.forward([Row.chain(sequence, (1,))])
    assert isinstance(result.error, GrammarTooComplex)


BOMBS: list[tuple[ConstraintKind, str]] = [
    (SCHEMA, "[" * 60_000),
    (REGEX, "(" * 60_000),
    (GRAMMAR, "start: " + "(" * 60_000),
    (
        SCHEMA,
        json.dumps({"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{n}}}"} for n in range(5, 60)]}),
    ),
]


@pytest.mark.parametrize("bomb", quick_first(BOMBS), ids=lambda bomb: bomb[0].name)
def test_a_bomb_is_refused_in_one_sentence_and_in_bounded_time(bomb: tuple[ConstraintKind, str]) -> None:
    began_s = time.monotonic()
    found = tried(constraint(*bomb)).fault
    assert 0 < len(found) < 200 and "\n" not in found
    assert time.monotonic() - began_s < 60


def test_a_trial_tells_what_a_constraint_takes_and_one_that_takes_much_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = tried(constraint(REGEX, "(ab|n){3}"))
    # This number of them may be kept together.
    assert not found.fault and 0 <= found.size_bytes < MAX_KEPT_BYTES // MAX_COMPILED
    answer = ("", MAX_ONE_BYTES + 1)
    monkeypatch.setattr(module, "answer_of", lambda *_, **__: answer)
    assert tried(constraint(REGEX, "a")) == Tried("it is too large", MAX_ONE_BYTES + 1)


def test_of_constraints_that_take_too_much_together_those_are_forgotten_that_came_first() -> None:
    grammars = letter_grammars(tried=lambda of: Tried("it is bad" if of.text == "b" else "", MAX_KEPT_BYTES // 2))
    for text in ("a", "b", "ab", "n"):
        asyncio.run(grammars.prepare(constraint(REGEX, text)))
    told = {text: grammars.fault(constraint(REGEX, text)) for text in ("a", "b", "ab", "n")}
    assert told == {"a": None, "b": "it is bad", "ab": "", "n": ""}
    # A running text with it continues.
    [mask] = grammars.guide(constraint(REGEX, "a")).masks((), [()])
    assert allowed(mask) == {"a"}


def test_what_forces_too_much_at_once_is_refused_and_a_text_that_comes_to_it_fails() -> None:
    assert fault(constraint(REGEX, f"a{{{MAX_FORCED_BYTES}}}")) == ""
    assert fault(constraint(REGEX, "a{190000}")) == "it forces more than 4096 bytes at once"
    guide = GRAMMARS.guide(constraint(REGEX, "b|na{190000}"))
    [mask] = guide.masks((), [()])
    assert allowed(mask) == {"b", "n"}
    with pytest.raises(GrammarTooComplex):
        guide.masks((), [tokens_of("n")])


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        (SCHEMA, '{"type": "nothing"}', "Invalid type"),
        (SCHEMA, '{"not": {}}', "Unimplemented keys"),
        (SCHEMA, "no JSON", "Expecting value"),
        (REGEX, "(", "unclosed group"),
        (GRAMMAR, "start: x", "unknown name"),
    ],
)
def test_what_cannot_be_compiled_is_told_and_remembered(kind: ConstraintKind, text: str, told: str) -> None:
    grammars, of = letter_grammars(), constraint(kind, text)
    assert grammars.fault(of) is None
    asyncio.run(grammars.prepare(of))
    assert told in str(grammars.fault(of))


def test_white_space_between_parts_of_json_is_bounded_or_as_the_schema_says() -> None:
    many, spaces = tokens_of('["a"' + " " * 32), tokens_of('["a" ')
    for own, output, expected in (("", many, {",", "]"}), ('"whitespace_flexible": false', spaces, None)):
        of = constraint(SCHEMA, f'{{"type": "array", "x-guidance": {{{own}}}}}')
        [mask] = GRAMMARS.guide(of).masks(output, [()])
        assert (None if mask is None else allowed(mask)) == expected


def test_what_must_follow_is_known_without_a_model() -> None:
    guide = GRAMMARS.guide(constraint(REGEX, "(ab1|n)r+"))
    begin = guide.place(())
    assert begin is not None and begin.forced() == ()
    here = guide.place(tokens_of("a"))
    assert here is not None and text_of(here.forced()) == "b1r"
    # The same without a continuation, and nothing more once there is a choice.
    there = begin.after(tokens_of("ab1r"))
    assert there is not None and there.forced() == ()
    assert begin.forced() == () and begin.after(tokens_of("ar")) is None


def test_a_drafter_drafts_without_a_grammar_until_it_is_ready() -> None:
    grammars, of = letter_grammars(waits=False), constraint(REGEX, "ab")
    guide = grammars.guide(of)
    assert guide.masks((), [()]) == [None]
    asyncio.run(grammars.prepare(of))
    [mask] = guide.masks(tokens_of("a"), [()])
    assert allowed(mask) == {"b"}


@pytest.mark.slow
def test_the_tokenizer_of_a_folder_knows_the_letters_of_its_tokens() -> None:
    grammars = Grammars.of(zoo.tokenizer_folder())
    assert grammars is not None and fault(constraint(REGEX, "[0-9]+")) == ""
    assert load_tokenizer(zoo.tokenizer_folder()).decode(grammars.usual_json) == USUAL_JSON
    [mask] = grammars.guide(constraint(REGEX, "[0-9]{3}", (2,))).masks((), [()])
    assert mask is not None and 10 <= int(np.unpackbits(mask).sum()) < 2000
