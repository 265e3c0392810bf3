"""A prompt is text, token ids or a chat; anything else is answered with what to give instead."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from threading import Event
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_p2p.request.offload import Threads
from cosine_p2p.text.prompt import LONG_CHARACTERS, PromptEncoder, encode_prompt, read_prompt
from cosine_protocol.errors import PromptRefused
from tests.scenes import in_real_time

CODEC = LetterCodec()
CHAT = [{"role": "user", "content": "What is 3 plus 4?"}]
SEVERAL = (
    "A call takes one prompt, not several; call it for each, or run them at the same time with `Client.submit` or "
    "`asyncio.gather`."
)
EMPTY = "The prompt is empty; give at least one character."
KINDS = "A prompt is a text, a list of token ids or a list of chat messages, not"
IDS = "Token ids of a prompt must be whole numbers from 0 to 2147483647, not"


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        ("", EMPTY),
        ([], EMPTY),
        (None, f"{KINDS} None."),
        (3, f"{KINDS} 3."),
        ({1, 2}, f"{KINDS} {{1, 2}}."),
        (b"Once", "A prompt is text, not bytes; decode it first, as in prompt.decode()."),
        (["Once", "Long ago"], SEVERAL),
        (["Once"], SEVERAL),
        ([[1, 2], [3, 4]], SEVERAL),
        (np.array([[1, 2]]), SEVERAL),
        ([*CHAT, "Once"], SEVERAL),
        (CHAT[0], "A chat is a list of messages; write [message] for a single one."),
        ([{"content": "a"}], "Message 1 of the chat must have a role that is text, not None."),
        ([*CHAT, {"role": "user", "content": 3}], "Message 2 of the chat must have a content that is text, not 3."),
        ([1, -1], f"{IDS} -1."),
        ([1, 1.5], f"{IDS} 1.5."),
        ([True], f"{IDS} True."),
        ([1 << 31], f"{IDS} 2147483648."),
        ([1, *CHAT], f"{IDS} {{'content': 'What is 3 plus 4?', 'role': 'user'}}."),
        ("a\ud800", "The prompt has half a character at 1, '\\ud800'; decode it from bytes again."),
    ],
)
def test_what_is_no_prompt_is_refused_in_a_sentence(prompt: Any, sentence: str) -> None:
    with pytest.raises(PromptRefused) as refused:
        read_prompt(prompt)
    assert str(refused.value) == sentence


def test_each_kind_of_prompt_is_taken_as_it_is() -> None:
    assert read_prompt("Once") == "Once"
    assert read_prompt(CHAT) == CHAT
    assert read_prompt([1, 2]) == read_prompt(range(1, 3)) == read_prompt(np.array([1, 2])) == (1, 2)


@given(st.one_of(st.text(), st.binary(), st.lists(st.one_of(st.integers(), st.text(), st.none(), st.floats()))))
def test_nothing_else_is_raised(prompt: Any) -> None:
    try:
        assert read_prompt(prompt)
    except PromptRefused as refused:
        assert str(refused).isprintable()


def test_ids_of_the_target_are_its_text() -> None:
    tokens = CODEC.encode("abc")
    assert encode_prompt(CODEC, "abc") == encode_prompt(CODEC, tokens) == tokens
    with pytest.raises(PromptRefused, match=f"from 0 to {CODEC.vocab_tokens - 1}, not {CODEC.vocab_tokens}"):
        encode_prompt(CODEC, [CODEC.vocab_tokens])


def test_a_prompt_that_takes_for_ever_to_read_is_refused() -> None:
    async def never(work: Callable[[], None]) -> None:
        await asyncio.Event().wait()

    with pytest.raises(PromptRefused, match="could not be read within 60 s"):
        run_virtual(PromptEncoder(never, never).encode(CODEC, "abc"))


class HeldCodec(LetterCodec):
    """Reads long prompts only once it may."""

    def __init__(self) -> None:
        self.may_go_on = Event()

    def encode(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        if len(text) > LONG_CHARACTERS:
            assert self.may_go_on.wait(30.0)
        return super().encode(text)

    def encode_chat(self, messages: Sequence[Mapping[str, str]], **options: Any) -> tuple[int, ...]:
        return self.encode("".join(message["content"] for message in messages))


@pytest.mark.parametrize(
    "prompt", ["a" * (LONG_CHARACTERS + 1), [{"role": "user", "content": "a" * (LONG_CHARACTERS + 1)}]]
)
@in_real_time
async def test_long_prompts_hold_up_neither_the_loop_nor_short_ones(prompt: Any) -> None:
    codec, threads = HeldCodec(), [Threads(name, 1) for name in ("short", "long")]
    encoder = PromptEncoder(*threads)
    long = [asyncio.ensure_future(encoder.encode(codec, prompt)) for _ in range(3)]
    assert await encoder.encode(codec, "abc") == CODEC.encode("abc")
    assert not any(each.done() for each in long)
    codec.may_go_on.set()
    assert [len(tokens) for tokens in await asyncio.gather(*long)] == [LONG_CHARACTERS + 1] * 3
    for each in threads:
        each.close()
