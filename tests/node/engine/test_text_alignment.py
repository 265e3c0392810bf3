"""Text between tokenizers: what is proposed always spells what was said, and only what is settled is proposed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

from cosine_node.engine.text_alignment import (
    After,
    PlainTokens,
    PredictedToken,
    is_last,
    plan_tokens,
    whole_text,
)
from tests.cosine_p2p.tokenizer_kinds import KINDS
from tests.node.engine.recited import BYTES, PAIRS, TEXT, byte_level

GEMMA = PlainTokens(KINDS["byte fallback, as Gemma"]())
LLAMA = PlainTokens(KINDS["byte fallback, as Llama 2"]())
FALLBACK_DIRECTIONS = [(GEMMA, BYTES), (BYTES, GEMMA), (LLAMA, PAIRS)]
DIRECTIONS = [(PAIRS, BYTES), (BYTES, PAIRS)]
EMOJI = "🙂👍🏽🐟🙂🙂"
AFTER = st.sampled_from(After)


def said_of(own: PlainTokens, text: str, probability: float = 0.5) -> list[PredictedToken]:
    return [PredictedToken(token, probability) for token in own.encode(text)]


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


@given(st.text(max_size=20), st.text(max_size=20), AFTER, st.sampled_from(DIRECTIONS))
def test_what_is_proposed_spells_the_beginning_of_what_was_said(
    before: str, text: str, after: After, direction: tuple[PlainTokens, PlainTokens]
) -> None:
    target, own = direction
    tokens = tokens_of(target, own, before, text, after)
    spelt = target.decode([*target.encode(before), *tokens])
    assert (before + text).startswith(spelt)
    if after is After.NOTHING and "\ufffd" not in before + text:
        assert spelt == before + text


@pytest.mark.parametrize("direction", FALLBACK_DIRECTIONS, ids=["Gemma", "for Gemma", "Llama"])
@pytest.mark.parametrize("cut", range(len(EMOJI)))
def test_emoji_are_proposed_to_the_last_byte(direction: tuple[PlainTokens, PlainTokens], cut: int) -> None:
    target, own = direction
    before, text = "ok " + EMOJI * 4 + EMOJI[:cut], EMOJI[cut:]
    tokens = tokens_of(target, own, before, text, After.NOTHING)
    assert target.decode([*target.encode(before), *tokens]) == before + text


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


def test_a_word_counts_once_something_else_has_begun() -> None:
    assert tokens_of(PAIRS, BYTES, "the", " ferry", After.MORE) == []
    assert tokens_of(PAIRS, BYTES, "the", " ferry l", After.MORE) == list(PAIRS.encode(" ferry"))
    assert tokens_of(PAIRS, BYTES, "the", " ferry", After.NOTHING) == list(PAIRS.encode(" ferry"))


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
