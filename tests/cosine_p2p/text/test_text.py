"""A text ends before the first stop string, wherever its tokens end, and nothing of a stop string is ever given."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.simulation.letter_codec import LetterCodec
from cosine_p2p.text.detokenizer import Codec, Detokenizer, TextAssembler
from tests.cosine_p2p.tokenizer_kinds import KINDS, WHOLE_AT_THE_END, codec_of, ids, random_tokens

FUZZED_STOPS = 400
LETTERS = LetterCodec()


def pieces(
    codec: Codec, prompt: Sequence[int], output: Sequence[int], stop: Sequence[str]
) -> tuple[list[str], bool]:
    """What each token gives up to a stop, and what the end gives if there was none; and whether there was one."""
    assembler, given_text = TextAssembler(codec, prompt, stop), []
    for token in output:
        piece = assembler.add(token)
        given_text.append(piece.text)
        if piece.is_stopped:
            return given_text, True
    last = assembler.finish()
    return [*given_text, last.text], last.is_stopped


def of_letters(text: str, stop: Sequence[str]) -> tuple[list[str], bool]:
    return pieces(LETTERS, LETTERS.encode(">"), LETTERS.encode(text), stop)


def cut(growing: Sequence[str], stop: Sequence[str]) -> tuple[str, bool]:
    """A text before the first stop string of the first of its beginnings that has one."""
    for text in growing:
        places = [text.find(one) for one in stop if one in text]
        if places:
            return text[: min(places)], True
    return growing[-1], False


def certain_texts(codec: Codec, prompt: Sequence[int], output: Sequence[int]) -> list[str]:
    """The text that is certain with each token, and all of it."""
    detokenizer, texts = Detokenizer(codec, prompt), [""]
    for token in output:
        texts.append(texts[-1] + detokenizer.add(token))
    return [*texts, texts[-1] + detokenizer.finish()]


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=5), max_size=3))
def test_a_text_is_cut_at_the_letter_that_completes_a_stop_string(text: str, stop: list[str]) -> None:
    given_text, is_stopped = of_letters(text, stop)
    assert ("".join(given_text), is_stopped) == cut([text[:end] for end in range(len(text) + 1)], stop)


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=5), max_size=3))
def test_no_more_is_held_than_a_stop_string_needs(text: str, stop: list[str]) -> None:
    given_text, _ = of_letters(text, stop)
    for end in range(1, len(given_text)):
        so_far = "".join(given_text[:end])
        held = text[len(so_far) : end]
        assert text.startswith(so_far) and (not held or any(one.startswith(held) or one in held for one in stop))


def test_what_could_begin_a_stop_string_is_held_back() -> None:
    assert of_letters("abSTOx", ["STOP"]) == (["a", "b", "", "", "", "STOx", ""], False)
    assert of_letters("abST", ["STOP"]) == (["a", "b", "", "", "ST"], False)
    assert of_letters("abSTOPc", ["STOP"]) == (["a", "b", "", "", "", ""], True)


def test_of_several_stop_strings_by_then_the_first_to_begin_counts() -> None:
    codec = codec_of("words")
    assert pieces(codec, codec.encode("The"), ids(codec, "keeper", "opened"), ["pen", "r o"]) == (
        [" keepe", ""],
        True,
    )


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("byte")])
@pytest.mark.parametrize("end", ["", "k", " no"])
def test_a_stop_string_of_emoji_is_found(kind: str, end: str) -> None:
    codec = codec_of(kind)
    prompt = codec.encode("ok")
    output = codec.encode(f"ok 🙂👍🏽🙂🙂{end}")[len(prompt) :]
    given_text, is_stopped = pieces(codec, prompt, output, ["👍🏽🙂"])
    assert ("".join(given_text), is_stopped) == (" 🙂", True)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_many_stop_strings(kind: str) -> None:
    codec, rng = codec_of(kind), random.Random(kind)
    stopped = 0
    for number in range(FUZZED_STOPS):
        prompt = random_tokens(codec, rng, rng.choice([0, 1, 6, 40]))
        output = random_tokens(codec, rng, rng.choice([1, 12, 80]))
        certain = certain_texts(codec, prompt, output)
        stop = [text for _ in range(rng.randrange(1, 4)) if (text := random_stop(rng, certain[-1]))]
        expected = cut(certain, stop)
        given_text, is_stopped = pieces(codec, prompt, output, stop)
        assert ("".join(given_text), is_stopped) == expected, number
        # Whatever token it is certain with, nothing of the first stop string of the whole text is ever given.
        places = [certain[-1].find(one) for one in stop if one in certain[-1]]
        assert is_stopped == bool(places) and (not places or len(expected[0]) >= min(places))
        if kind in WHOLE_AT_THE_END or len(stop) == 1:
            assert "".join(given_text) == certain[-1][: min(places, default=None)]
        stopped += is_stopped
    assert stopped > FUZZED_STOPS / 4


def random_stop(rng: random.Random, text: str) -> str:
    """A part of a text, sometimes changed in its last letter so that it does not occur."""
    begin = rng.randrange(len(text) + 1)
    part = text[begin : begin + rng.randrange(1, 9)]
    return part[:-1] + "\u0000" if rng.random() < 0.3 else part
