"""Log-probabilities in OpenAI's formats, whole and streamed, and for benchmarks."""

import math
from typing import Any

import pytest

from cosine_gateway.logprobs import ChatLogprobs, CompletionLogprobs
from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_p2p.request.logprobs import LikelyToken, NamedToken, TokenLogprob
from tests.gateway.gateways import PROMPT, Reply, asked, text_of
from tests.swarm.reference import target_engine

TOKENS = 12
GREEDY = text_of(PROMPT, tokens=TOKENS)


def own(text: str) -> dict[str, float]:
    """The target's own log-probabilities of the letters after a text."""
    logits = target_engine().logits_after(LetterCodec().encode(text))
    total = math.log(math.fsum(math.exp(score) for score in logits))
    return {LetterCodec().decode([token]): score - total for token, score in enumerate(logits)}


def chat(**options: Any) -> Reply:
    body = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": TOKENS, **options}
    return asked("POST", "/v1/chat/completions", body)


def check_chat(content: list[Any], *, top: int) -> None:
    assert "".join(each["token"] for each in content) == GREEDY
    for position, each in enumerate(content):
        expected = own(PROMPT + GREEDY[:position])
        assert each["logprob"] == pytest.approx(expected[each["token"]], abs=1e-6)
        assert bytes(each["bytes"]).decode() == each["token"]
        best = sorted(expected, key=lambda letter: -expected[letter])[:top]
        assert [likely["token"] for likely in each["top_logprobs"]] == best


def test_a_chat_has_those_of_its_tokens_whole_and_streamed() -> None:
    (choice,) = chat(logprobs=True, top_logprobs=2).json["choices"]
    check_chat(choice["logprobs"]["content"], top=2)
    assert choice["logprobs"]["refusal"] is None
    told = [piece["choices"][0]["logprobs"] for piece in chat(logprobs=True, stream=True).events]
    check_chat([each for one in told if one for each in one["content"]], top=0)
    # The role before the first token, and the end, have none.
    assert told[0] is told[-1] is None


@pytest.mark.parametrize(("tokens", "is_streamed"), [(TOKENS, False), (TOKENS, True), (0, False)])
def test_a_completion_has_those_of_an_echoed_prompt_too(tokens: int, is_streamed: bool) -> None:
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": tokens, "logprobs": 1, "echo": True}
    reply = asked("POST", "/v1/completions", {**body, "stream": is_streamed})
    if is_streamed:
        choices = [piece["choices"][0] for piece in reply.events]
        text = "".join(choice["text"] for choice in choices)
        parts = [choice["logprobs"] for choice in choices if choice["logprobs"]]
        told = {name: [value for part in parts for value in part[name]] for name in parts[0]}
    else:
        (choice,) = reply.json["choices"]
        text, told = choice["text"], choice["logprobs"]
    assert text == "".join(told["tokens"]) == PROMPT + GREEDY[:tokens]
    assert told["text_offset"] == list(range(len(text)))
    assert (told["token_logprobs"][0], told["top_logprobs"][0]) == (None, None)
    for place in range(1, len(text)):
        expected = own(text[:place])
        best = max(expected, key=expected.__getitem__)
        shown = {letter: pytest.approx(expected[letter], abs=1e-6) for letter in (best, text[place])}
        assert told["token_logprobs"][place] == shown[text[place]]
        assert told["top_logprobs"][place] == shown


EURO = "€".encode()
FIRST, SECOND = (
    TokenLogprob(7 + place, part.decode(errors="replace"), tuple(part), -1.0, (LikelyToken(1, "a", (97,), -0.5),))
    for place, part in enumerate((EURO[:2], EURO[2:]))
)
END = TokenLogprob(2, "</s>", (), -0.25)


def test_halves_of_a_character_are_told_by_their_bytes() -> None:
    first, second, end = ChatLogprobs().of([FIRST, SECOND, END], "€")["content"]
    assert bytes(first["bytes"] + second["bytes"]).decode() == "€"
    assert (first["token"], end["token"], end["bytes"]) == ("\ufffd", "</s>", None)
    told = CompletionLogprobs().of([FIRST, SECOND, END], "€")
    assert told["tokens"] == [r"bytes:\xe2\x82", r"bytes:\xac", "</s>"]
    assert told["text_offset"] == [0, 0, 1]
    assert told["top_logprobs"][0] == {"a": -0.5, r"bytes:\xe2\x82": -1.0}


@pytest.mark.parametrize(
    ("text", "offsets"), [("<s> Hi there", [0, 3, 6]), ("Hi there", [0, 0, 2]), (" Hi there", [0, 0, 3])]
)
def test_offsets_are_those_of_the_text_with_or_without_special_tokens_and_a_first_space(
    text: str, offsets: list[int]
) -> None:
    words = [TokenLogprob(5, " Hi", tuple(b" Hi"), -1.0), TokenLogprob(6, " there", tuple(b" there"), -1.0)]
    shape = CompletionLogprobs()
    assert shape.of([NamedToken(1, "<s>", ()), *words], text)["text_offset"] == offsets
    assert shape.of([END], "")["text_offset"] == [len(text)]
