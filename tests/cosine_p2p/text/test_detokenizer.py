"""Tests of incremental detokenization and stop strings."""

from collections.abc import Sequence
from os import path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_p2p.text.detokenizer import Detokenizer, TextAssembler
from cosine_p2p.text.token_effects import TokenEffect
from cosine_p2p.text.tokenizer import TextTokenizer
from tests.cosine_p2p.tokenizer_kinds import KINDS, codec_of, ids

BYTE_FALLBACK = [kind for kind in KINDS if kind.startswith("byte fallback")]


def added_text(codec: TextTokenizer, prompt: Sequence[int], output: Sequence[int]) -> str:
    """Return decode(prompt + output) without its common prefix with decode(prompt)."""
    whole = codec.decode([*prompt, *output])
    return whole[len(path.commonprefix([codec.decode(prompt), whole])) :]  # noqa: RUF071 letter by letter is meant


def streamed(codec: TextTokenizer, prompt: Sequence[int], output: Sequence[int]) -> list[str]:
    detokenizer = Detokenizer(codec, prompt)
    return [*(detokenizer.add(token) for token in output), detokenizer.finish()]


def bytes_of(codec: TextTokenizer, text: str | bytes) -> list[int]:
    data = text.encode() if isinstance(text, str) else text
    return ids(codec, *(f"<0x{byte:02X}>" for byte in data))


tokens_of_any_kind = st.lists(st.integers(min_value=0, max_value=430), max_size=50)


@pytest.mark.parametrize("kind", KINDS)
@given(prompt=tokens_of_any_kind, output=tokens_of_any_kind)
@settings(max_examples=25, deadline=None)
def test_any_tokens_give_the_decoded_text(kind: str, prompt: list[int], output: list[int]) -> None:
    codec = codec_of(kind)
    assert "".join(streamed(codec, prompt, output)) == added_text(codec, prompt, output)


EMOJI, SPECIAL = "🙂", "<|turn|>"


@pytest.mark.parametrize("kind", BYTE_FALLBACK)
@pytest.mark.parametrize(
    ("output", "given_text"),
    [
        (EMOJI * 2, ["", "", "", EMOJI] * 2 + [""]),
        # Cut within a character: those before it stay.
        (EMOJI.encode() + b"\xf0\x9f", ["", "", "", EMOJI, "", "", "\ufffd" * 2]),
        # A byte of no character costs itself, and no other.
        (b"\xe6\x97o", ["", "", "\ufffd\ufffdo", ""]),
        # Too long a form, and half of a pair of UTF-16, are no characters.
        (b"\xc0\xafo", ["", "", "\ufffd\ufffdo", ""]),
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


LETTERS = LetterCodec()


def pieces(
    codec: TextTokenizer, prompt: Sequence[int], output: Sequence[int], stop: Sequence[str]
) -> tuple[list[str], bool]:
    """Return the text of each token up to a stop, that of the end without one, and whether there was one."""
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


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=5), max_size=3))
def test_no_more_is_held_than_a_stop_string_needs(text: str, stop: list[str]) -> None:
    given_text, _ = of_letters(text, stop)
    for end in range(1, len(given_text)):
        so_far = "".join(given_text[:end])
        held = text[len(so_far) : end]
        assert text.startswith(so_far) and (not held or any(one.startswith(held) or one in held for one in stop))


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
def test_a_stop_string_may_contain_a_special_token(text: str, stop: list[str]) -> None:
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
