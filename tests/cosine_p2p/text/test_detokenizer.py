"""Text comes once it is certain, is never taken back, and ends before the first stop string."""

import random
from collections.abc import Sequence
from os import path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_p2p.text.detokenizer import SETTLED_AFTER_TOKENS, Codec, Detokenizer, TextAssembler
from cosine_p2p.text.token_effects import TokenEffect
from cosine_p2p.text.tokenizer import TextTokenizer
from tests.cosine_p2p.tokenizer_kinds import KINDS, WHOLE_AT_THE_END, codec_of, ids, random_tokens

MANY_TOKENS = 1000
BYTE_FALLBACK = [kind for kind in KINDS if kind.startswith("byte fallback")]


def added_text(codec: TextTokenizer, prompt: Sequence[int], output: Sequence[int]) -> str:
    """decode(prompt + output) without what it has in common with decode(prompt)."""
    whole = codec.decode([*prompt, *output])
    return whole[len(path.commonprefix([codec.decode(prompt), whole])) :]  # noqa: RUF071 letter by letter is meant


def streamed(codec: TextTokenizer, prompt: Sequence[int], output: Sequence[int]) -> list[str]:
    """What each token gives, and what the end gives."""
    detokenizer = Detokenizer(codec, prompt)
    return [*(detokenizer.add(token) for token in output), detokenizer.finish()]


def bytes_of(codec: TextTokenizer, text: str | bytes) -> list[int]:
    """A text in tokens of bytes."""
    data = text.encode() if isinstance(text, str) else text
    return ids(codec, *(f"<0x{byte:02X}>" for byte in data))


tokens_of_any_kind = st.lists(st.integers(min_value=0, max_value=430), max_size=50)


@pytest.mark.parametrize("kind", KINDS)
@given(prompt=tokens_of_any_kind, output=tokens_of_any_kind)
@settings(max_examples=25, deadline=None)
def test_any_tokens_give_the_decoded_text(kind: str, prompt: list[int], output: list[int]) -> None:
    codec = codec_of(kind)
    assert "".join(streamed(codec, prompt, output)) == added_text(codec, prompt, output)


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(alphabet="ab 日é🙂👩\u200d👧\u0301\ufffd.,'▁", max_size=30), data=st.data())
@settings(max_examples=25, deadline=None)
def test_a_text_cut_anywhere_goes_on(kind: str, text: str, data: Any) -> None:
    codec = codec_of(kind)
    tokens = codec.encode(text)
    cut = data.draw(st.integers(min_value=0, max_value=len(tokens)))
    given_text = "".join(streamed(codec, tokens[:cut], tokens[cut:]))
    assert given_text == added_text(codec, tokens[:cut], tokens[cut:])


EMOJI, SPECIAL = "🙂", "<|turn|>"


@pytest.mark.parametrize("kind", BYTE_FALLBACK)
@pytest.mark.parametrize(
    ("output", "given_text"),
    [
        (EMOJI * 2, ["", "", "", EMOJI] * 2 + [""]),
        ("日本", ["", "", "日", "", "", "本", ""]),
        # Cut within a character: those before it stay.
        (EMOJI.encode() + b"\xf0\x9f", ["", "", "", EMOJI, "", "", "\ufffd" * 2]),
        # A byte of no character costs itself, and no other.
        (b"\xe6\x97o", ["", "", "\ufffd\ufffdo", ""]),
        (b"\xff" + EMOJI.encode(), ["", "", "", "\ufffd", EMOJI, ""]),
        # Too long a form, and half of a pair of UTF-16, are no characters.
        (b"\xc0\xafo", ["", "", "\ufffd\ufffdo", ""]),
        (b"\xed\xa0\x80o", ["", "", "", "\ufffd\ufffd\ufffdo", ""]),
    ],
)
def test_characters_in_tokens_of_bytes_come_one_by_one_as_sentencepiece_reads_them(
    kind: str, output: str | bytes, given_text: list[str]
) -> None:
    codec = codec_of(kind)
    assert streamed(codec, codec.encode("ok"), bytes_of(codec, output)) == given_text


@pytest.mark.parametrize("kind", BYTE_FALLBACK)
def test_a_prompt_may_end_within_a_character_of_byte_tokens(kind: str) -> None:
    codec = codec_of(kind)
    ok, emoji = codec.encode("ok"), bytes_of(codec, EMOJI)
    run = [*emoji, *emoji]
    for prompt, output, text in (
        # Special tokens do not end a run, and half a character of the prompt belongs to the output.
        (ok, [emoji[0], *ids(codec, SPECIAL), *emoji[1:], *ids(codec, "o")], f"{EMOJI}o"),
        *(
            ([*ok, *run[:cut]], [*run[cut:], *ids(codec, "o")], EMOJI * (1 if cut >= 4 else 2) + "o")
            for cut in range(1, 8)
        ),
        ([*ok, *emoji], bytes_of(codec, b"\xe6\x97"), "\ufffd" * 2),
        ([*ok, *emoji], bytes_of(codec, "\no"), "\no"),
        (ids(codec, "<s>") * 40, ids(codec, "▁", "o"), codec.decode(ids(codec, "▁", "o"))),
        ([*ok, *ids(codec, SPECIAL) * 40], ids(codec, "▁", "o"), " o"),
    ):
        assert "".join(streamed(codec, prompt, output)) == text


class Counted:
    """A codec that counts the tokens it decodes."""

    def __init__(self, codec: TextTokenizer) -> None:
        self._codec = codec
        self.effect = codec.effect
        self.special_text = codec.special_text
        self.decoded = 0

    def decode(self, tokens: Sequence[int]) -> str:
        self.decoded += len(tokens)
        return self._codec.decode(tokens)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("are_words", [True, False], ids=["words", "bytes of no character"])
def test_the_work_grows_with_the_output(kind: str, are_words: bool) -> None:
    codec = Counted(codec_of(kind))
    tokens = codec_of(kind).encode("ok , ok") if are_words else _no_character(codec_of(kind))
    text = [tokens[index % len(tokens)] for index in range(MANY_TOKENS)]
    detokenizer = Detokenizer(codec, text)
    for token in text:
        detokenizer.add(token)
    detokenizer.finish()
    # Prompt and output as a whole, and for each token at most what is decoded again.
    assert codec.decoded <= 3 * MANY_TOKENS + MANY_TOKENS * 2 * SETTLED_AFTER_TOKENS


def _no_character(codec: TextTokenizer) -> list[int]:
    """A token of a byte that begins no character, where the tokenizer has such tokens; else a mark."""
    names = codec.library.get_vocab()
    return [names.get("<0xFF>", names.get("ÿ", names["."]))]


FUZZED_STOPS = 100
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


class SpecialLetters(LetterCodec):
    """Capitals are special tokens: they are decoded to nothing."""

    def decode(self, tokens: Sequence[int]) -> str:
        return _small(super().decode(tokens))

    def effect(self, token: int) -> TokenEffect:
        return TokenEffect.SILENT if self.special_text(token) else TokenEffect.WHOLE

    def special_text(self, token: int) -> str:
        letter = super().decode([token])
        return letter if letter.isupper() else ""


def _small(text: str) -> str:
    return "".join(letter for letter in text if not letter.isupper())


@given(st.text("abXY", max_size=20), st.lists(st.text("abXY", min_size=1, max_size=4), max_size=3))
def test_a_stop_string_with_a_special_token_is_found_in_the_text_with_special_tokens(
    text: str, stop: list[str]
) -> None:
    codec = SpecialLetters()
    given_text, is_stopped = pieces(codec, codec.encode(">"), codec.encode(text), stop)
    for end in range(len(text) + 1):
        whole, plain = text[:end], _small(text[:end])
        ends = [plain.find(one) for one in stop if one in plain]
        ends += [len(_small(whole[: whole.find(one)])) for one in stop if one in whole and one != _small(one)]
        if ends:
            assert ("".join(given_text), is_stopped) == (plain[: min(ends)], True)
            return
    assert ("".join(given_text), is_stopped) == (_small(text), False)


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
