"""Text comes in whole characters and never takes anything back."""

import random
from collections.abc import Sequence

import pytest

from cosine_p2p.text import TextAssembler

WORDS = ["a", "é", "日本", "🙂", "x\n", "stop", "st", " ", "👩‍👩‍👧", "\ufffd"]


def decode(tokens: Sequence[int]) -> str:
    """A byte-level tokenizer: a token is a byte."""
    return bytes(tokens).decode(errors="replace")


def letters(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


def pieces(text: str, *, stop: Sequence[str] = ()) -> tuple[list[str], bool]:
    assembler = TextAssembler(letters, [ord(">")], stop)
    given = []
    for letter in text:
        piece = assembler.add(ord(letter))
        given.append(piece.text)
        if piece.is_stopped:
            return given, True
    return [*given, assembler.finish().text], False


@pytest.mark.parametrize("seed", range(200))
def test_the_pieces_are_the_decoded_output(seed: int) -> None:
    rng = random.Random(seed)
    prompt = "".join(rng.choices(WORDS, k=rng.choice([0, 4, 20]))).encode()
    output = "".join(rng.choices(WORDS, k=rng.choice([12, 80]))).encode()
    if rng.random() < 0.3:
        output = output[: rng.randrange(1, len(output))]
    assembler = TextAssembler(decode, prompt, ["never there"])
    given = "".join(assembler.add(token).text for token in output) + assembler.finish().text
    assert given == decode(prompt + output)[len(decode(prompt)) :], f"seed {seed}"


@pytest.mark.parametrize("seed", range(200))
def test_a_stop_string_cuts_wherever_tokens_end(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choices("abc", k=30))
    stops = ["".join(rng.choices("abc", k=rng.randrange(1, 5))) for _ in range(rng.randrange(1, 3))]
    given, is_stopped = pieces(text, stop=stops)
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    assert is_stopped == bool(ends), f"seed {seed}"
    if ends:
        seen = text[: min(ends)]
        text = text[: min(seen.find(stop) for stop in stops if stop in seen)]
    assert "".join(given) == text, f"seed {seed}"


def test_what_could_begin_a_stop_string_is_held_back() -> None:
    assert pieces("abSTOx", stop=["STOP"]) == (["a", "b", "", "", "", "STOx", ""], False)
    assert pieces("abST", stop=["STOP"]) == (["a", "b", "", "", "ST"], False)
    assert pieces("abSTOPc", stop=["STOP"]) == (["a", "b", "", "", "", ""], True)


def test_incomplete_characters_are_held_back() -> None:
    assembler = TextAssembler(decode, b"")
    assert [assembler.add(byte).text for byte in "🙂".encode()] == ["", "", "", "🙂"]


def test_bytes_that_will_never_be_a_character_do_come() -> None:
    assembler = TextAssembler(decode, b"")
    given = [assembler.add(0xFF).text for _ in range(8)]
    assert "".join(given) + assembler.finish().text == "\ufffd" * 8
