"""A drafter with another tokenizer: only its settled text is proposed, in the target's tokens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

from cosine_engine.base import BadLogits, Choice, PassAbandoned, Row, RowResult
from cosine_engine.other_tokens.retokenized import MAX_PASSES, SETTLE_TOKENS, RetokenizedEngine
from cosine_engine.other_tokens.text_alignment import (
    After,
    PlainTokens,
    PredictedToken,
    TextTokens,
    is_last,
    plan_tokens,
    whole_text,
)
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_protocol.errors import LocalProtocolError
from cosine_protocol.request import Sampling
from tests.cosine_p2p.tokenizer_kinds import KINDS
from tests.engine.recited import BYTES, PAIRS, TEXT, VOCAB_TOKENS, Reciter, byte_level, chain

DIRECTIONS = [(PAIRS, BYTES), (BYTES, PAIRS)]
"""Pairs of (target, own) tokenizers."""
both_ways = pytest.mark.parametrize(("target", "own"), DIRECTIONS, ids=["bytes-for-pairs", "pairs-for-bytes"])


def retokenized(inner: Any, *, target: PlainTokens, own: PlainTokens, **options: Any) -> RetokenizedEngine:
    return RetokenizedEngine(inner, own=own, target=target, vocab_tokens=VOCAB_TOKENS[target], **options)


def reciting(target: PlainTokens, own: PlainTokens) -> tuple[RetokenizedEngine, Reciter]:
    inner = Reciter(own, TEXT, vocab_tokens=VOCAB_TOKENS[own])
    return retokenized(inner, target=target, own=own), inner


def opened(engine: RetokenizedEngine, prompt_tokens: int = 1) -> int:
    return engine.open(sampling=Sampling(), prompt_tokens=prompt_tokens)


def choice_after(engine: RetokenizedEngine, row: Row) -> Choice:
    return engine.forward([row])[0].choices[-1]


def drafts_along(engine: RetokenizedEngine, ids: Sequence[int], *, prompt_tokens: int) -> list[Choice]:
    """Return the engine's choices at each place of a text that is committed and kept token by token."""
    sequence = opened(engine, prompt_tokens)
    said = [choice_after(engine, chain(sequence, ids[:prompt_tokens]))]
    engine.keep(sequence, range(prompt_tokens))
    for name in range(prompt_tokens, len(ids) - 1):
        said.append(choice_after(engine, chain(sequence, ids[name : name + 1], first=name)))
        engine.keep(sequence, [name])
    engine.release(sequence)
    return said


def prompt_of(target: TextTokens) -> Sequence[int]:
    return target.encode("When the ferry")


@both_ways
def test_a_known_text_is_drafted_token_by_token_as_the_target_writes_it(
    target: PlainTokens, own: PlainTokens
) -> None:
    engine, inner = reciting(target, own)
    ids = target.encode(TEXT)
    said = drafts_along(engine, ids, prompt_tokens=len(prompt_of(target)))
    assert [choice.token for choice in said] == list(ids[len(prompt_of(target)) :])
    assert all(choice.candidates[0][0] == choice.token for choice in said)
    # The last pass predicts the tokens after the text: up to MAX_PASSES question marks.
    assert inner.passes <= len(own.encode(TEXT)) + MAX_PASSES


@both_ways
def test_a_contradicted_draft_leaves_no_trace(target: PlainTokens, own: PlainTokens) -> None:
    engine, _ = reciting(target, own)
    sequence = opened(engine)
    prompt = prompt_of(target)
    drafted = choice_after(engine, chain(sequence, prompt)).token
    last = len(prompt) - 1
    choice_after(engine, chain(sequence, [drafted], first=100, parent=last))
    other = target.encode(" sank")
    said = choice_after(engine, chain(sequence, other, first=200, parent=last))
    engine.prune(sequence, [100])
    assert said == choice_after(engine, chain(opened(engine), [*prompt, *other]))
    assert choice_after(engine, chain(sequence, [drafted], first=300, parent=last)).candidates


def test_text_whose_kept_tokens_turn_out_otherwise_is_begun_anew() -> None:
    class Fickle:
        """One token per letter; but a text that ends in a full stop has other tokens from its beginning on."""

        def encode(self, text: str) -> Sequence[int]:
            return [ord(letter) + (128 if text.endswith(".") else 0) for letter in text]

        def decode(self, tokens: Sequence[int]) -> str:
            return "".join(chr(token % 128) for token in tokens)

    inner = ScriptedEngine(vocab_tokens=256)
    engine = RetokenizedEngine(inner, own=Fickle(), target=BYTES, vocab_tokens=256)
    sequence = opened(engine)
    ids = BYTES.encode("a" * SETTLE_TOKENS + "bc.d")
    engine.forward([chain(sequence, ids[:-3])])
    engine.keep(sequence, range(len(ids) - 3))
    engine.forward([chain(sequence, ids[-3:-2], first=200)])
    engine.keep(sequence, [200])
    engine.forward([chain(sequence, ids[-2:-1], first=300)])
    engine.keep(sequence, [300])
    assert choice_after(engine, chain(sequence, ids[-1:], first=400)).candidates
    assert inner.open_sequences == 1
    engine.release(sequence)
    assert (inner.live_tokens, inner.open_sequences) == (0, 0)


def test_the_likelihood_of_a_prompt_is_told_by_target_token() -> None:
    """It is the same number of nats over the target's tokens, so that drafters of any tokenizer are comparable."""
    inner = ScriptedEngine(vocab_tokens=256)
    alone = ScriptedEngine(vocab_tokens=256)
    text = "Nobody counted the apricots"
    own_ids, ids = BYTES.encode(text), PAIRS.encode(text)
    sequence = alone.open(sampling=Sampling(), prompt_tokens=0)
    own_nll = alone.forward([replace(chain(sequence, own_ids), wants_nll=True)])[0].nll
    assert own_nll is not None
    engine = retokenized(inner, target=PAIRS, own=BYTES)
    nll = engine.forward([replace(chain(opened(engine), ids), wants_nll=True)])[0].nll
    assert nll == pytest.approx(own_nll * (len(own_ids) - 1) / (len(ids) - 1))


def test_a_sick_pass_is_the_fault_of_its_row_alone() -> None:
    class Sick(Reciter):
        def forward(self, rows: Sequence[Row]) -> list[RowResult]:
            spoilt = RowResult((), error=BadLogits("NaN"))
            results = super().forward(rows)
            return [well if row.sequence else spoilt for row, well in zip(rows, results, strict=True)]

    inner = Sick(BYTES, TEXT, vocab_tokens=256)
    engine = retokenized(inner, target=PAIRS, own=BYTES)
    rows = [chain(opened(engine), prompt_of(PAIRS)) for _ in range(2)]
    sick, well = engine.forward(rows)
    assert isinstance(sick.error, BadLogits)
    assert (sick.choices, well.error) == ((), None)
    assert well.choices[0].candidates
    with pytest.raises(LocalProtocolError):
        engine.keep(rows[0].sequence, [0])


def test_an_abandoned_pass_leaves_the_sequences_as_they_were() -> None:
    class Abandoned(Reciter):
        is_abandoned = True

        def forward(self, rows: Sequence[Row]) -> list[RowResult]:
            if self.is_abandoned:
                raise PassAbandoned("Nobody waits.")
            return super().forward(rows)

    inner = Abandoned(BYTES, TEXT, vocab_tokens=256)
    engine = retokenized(inner, target=PAIRS, own=BYTES)
    row = chain(opened(engine), prompt_of(PAIRS))
    with pytest.raises(PassAbandoned):
        engine.forward([row])
    assert (engine.live_tokens, inner.live_tokens) == (0, 0)
    inner.is_abandoned = False
    other = PAIRS.encode("The children")
    assert choice_after(engine, chain(row.sequence, other)).candidates
    assert inner.fed_tokens <= len(BYTES.encode("The children")) + MAX_PASSES


GEMMA = PlainTokens(KINDS["byte fallback, as Gemma"]())
LLAMA = PlainTokens(KINDS["byte fallback, as Llama 2"]())
FALLBACK_DIRECTIONS = [(GEMMA, BYTES), (BYTES, GEMMA), (LLAMA, PAIRS)]
TEXTS = st.text(max_size=20) | st.text("🙂👍🏽🐟 ok", max_size=20)
AFTER = st.sampled_from(After)


def said_of(own: PlainTokens, text: str) -> list[PredictedToken]:
    return [PredictedToken(token, 0.5) for token in own.encode(text)]


def tokens_of(target: PlainTokens, own: PlainTokens, before: str, text: str, after: After) -> list[int]:
    plan = plan_tokens(
        target,
        own,
        before=target.encode(before),
        own_before=own.encode(before),
        predicted=said_of(own, text),
        after=after,
    )
    return [token for token, _ in plan]


@given(TEXTS, TEXTS, AFTER, st.sampled_from([*DIRECTIONS, *FALLBACK_DIRECTIONS]))
def test_what_is_proposed_spells_the_beginning_of_what_was_said(
    before: str, text: str, after: After, direction: tuple[PlainTokens, PlainTokens]
) -> None:
    target, own = direction
    tokens = tokens_of(target, own, before, text, after)
    spelt = target.decode([*target.encode(before), *tokens])
    assert (before + text).startswith(spelt)
    if after is After.NOTHING and "\ufffd" not in before + text:
        assert spelt == before + text


@given(
    st.text(max_size=10),
    st.lists(st.integers(0, 255), max_size=12),
    AFTER,
    st.sampled_from([BYTES, PAIRS]),
)
def test_what_is_no_text_is_never_proposed(
    before: str, noise: list[int], after: After, target: PlainTokens
) -> None:
    said = [PredictedToken(token, 0.5) for token in noise]
    before = whole_text(before)
    plan = plan_tokens(
        target, BYTES, before=target.encode(before), own_before=BYTES.encode(before), predicted=said, after=after
    )
    spelt = target.decode([*target.encode(before), *(token for token, _ in plan)])
    assert (before + BYTES.decode(noise)).startswith(spelt)
    assert spelt.count("\ufffd") == before.count("\ufffd")


@given(cut=st.integers(1, len(TEXT) - 1), length=st.integers(0, 40), direction=st.sampled_from(DIRECTIONS))
def test_what_is_settled_stays_whatever_follows(
    cut: int, length: int, direction: tuple[PlainTokens, PlainTokens]
) -> None:
    target, own = direction
    before, text = TEXT[:cut], TEXT[cut : cut + length]
    settled = tokens_of(target, own, before, text, After.MORE)
    longer = tokens_of(target, own, before, TEXT[cut : cut + length + 40], After.NOTHING)
    assert longer[: len(settled)] == settled


def test_a_token_is_as_probable_as_those_that_begin_in_it() -> None:
    said = [
        PredictedToken(token, 0.5 if letter == "l" else 0.9)
        for token, letter in zip(BYTES.encode("el x"), "el x", strict=True)
    ]
    plan = plan_tokens(BYTES, BYTES, before=(), own_before=(), predicted=said, after=After.NOTHING)
    assert [probability for _, probability in plan] == [0.9, 0.5, 0.9, 0.9]
    wide = [PredictedToken(token, 0.7) for token in PAIRS.encode(" ferry")]
    plan = plan_tokens(BYTES, PAIRS, before=(), own_before=(), predicted=wide, after=After.NOTHING)
    assert [probability for _, probability in plan] == [0.7, *[1.0] * 5]


def test_nothing_follows_an_end_or_what_is_no_character() -> None:
    ends = frozenset({255})
    assert not is_last(BYTES, own_before=(), predicted=said_of(BYTES, "a"), ends=ends)
    assert is_last(BYTES, own_before=(), predicted=[PredictedToken(255, 1.0)], ends=ends)
    fish = said_of(BYTES, "🐟")
    assert not is_last(BYTES, own_before=(), predicted=fish[:2], ends=ends)
    assert is_last(BYTES, own_before=(), predicted=[*fish[:2], *said_of(BYTES, "a")], ends=ends)


def test_special_tokens_are_the_lead_and_the_ends_and_no_text() -> None:
    tokenizer = Tokenizer.from_str(byte_level(300).to_str())
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    begin, end = 300, 301
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", begin), ("</s>", end)]
    )
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=8)
    tokens = PlainTokens(tokenizer)
    assert (tokens.lead, tokens.ends) == ((begin,), frozenset({begin, end}))
    assert tokens.decode([begin, *tokens.encode("gulls are birds"), end]) == "gulls are birds"
    assert (PAIRS.lead, PAIRS.ends) == ((), frozenset())
