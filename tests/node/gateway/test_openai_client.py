"""The gateway as the `openai` package sees it, over a socket."""

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import pytest
from openai import APIStatusError, AsyncOpenAI, AuthenticationError, BadRequestError, NotFoundError, OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.node.gateway.letters import MODEL, PROMPT, text_of
from tests.node.gateway.serving import ServedGateway, served

pytestmark = pytest.mark.network

KEY: Final = "a-key"
TOKENS: Final = 20
GREEDY: Final = text_of(PROMPT, tokens=TOKENS)


def said(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def gateway() -> Iterator[ServedGateway]:
    with served(api_keys=(KEY, "another-key")) as running:
        yield running


@pytest.fixture(scope="module")
def client(gateway: ServedGateway) -> Iterator[OpenAI]:
    with OpenAI(base_url=gateway.base_url, api_key=KEY, max_retries=0) as openai:
        yield openai


def chat(client: OpenAI, text: str = PROMPT, **options: Any) -> ChatCompletion:
    settings = {"model": MODEL, "max_tokens": TOKENS, "temperature": 0, **options}
    done = client.chat.completions.create(messages=said(text), **settings)
    assert isinstance(done, ChatCompletion)
    return done


def streamed(client: OpenAI, **options: Any) -> list[ChatCompletionChunk]:
    settings = {"model": MODEL, "max_tokens": TOKENS, "temperature": 0, **options}
    return list(client.chat.completions.create(messages=said(PROMPT), stream=True, **settings))


def texts(chunks: list[ChatCompletionChunk], choices: int = 1) -> list[str]:
    """The text of each choice, put together."""
    parts = [(choice.index, choice.delta.content or "") for chunk in chunks for choice in chunk.choices]
    return ["".join(text for index, text in parts if index == wanted) for wanted in range(choices)]


def test_a_chat_is_answered_with_the_targets_text(client: OpenAI) -> None:
    done = chat(client)
    (choice,) = done.choices
    assert choice.message.content == GREEDY
    assert (choice.message.role, choice.finish_reason, choice.index) == ("assistant", "length", 0)
    assert (done.model, done.object) == (MODEL, "chat.completion")
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.total_tokens) == (8, 20, 28)
    assert (done.system_fingerprint or "").startswith("fp_")


def test_a_response_tells_what_drafting_did(client: OpenAI) -> None:
    report = (chat(client, seed=11).model_extra or {})["metrics"]["speculative_decoding"]
    assert report["rounds"] + report["accepted"] == TOKENS
    assert (report["strategy"], report["seed"]) == ("cosine", 11)
    assert [drafter["domain"] for drafter in report["drafters"]] == ["code"]


def test_a_stream_is_the_same_text_in_pieces(client: OpenAI) -> None:
    chunks = streamed(client)
    assert texts(chunks) == [GREEDY]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["length"]
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert all(chunk.usage is None for chunk in chunks)
    report = (chunks[-1].model_extra or {})["metrics"]["speculative_decoding"]
    assert report["rounds"] + report["accepted"] == TOKENS


def test_usage_comes_last_where_it_is_asked_for(client: OpenAI) -> None:
    chunks = streamed(client, stream_options={"include_usage": True})
    assert texts(chunks) == [GREEDY]
    *_, last = chunks
    assert last.choices == [] and last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (8, TOKENS)
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert "metrics" in (last.model_extra or {})


def test_a_completion_is_text_after_its_prompt(client: OpenAI) -> None:
    done = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=TOKENS, temperature=0)
    assert (done.object, done.choices[0].text, done.choices[0].finish_reason) == (
        "text_completion",
        GREEDY,
        "length",
    )
    pieces = list(client.completions.create(model=MODEL, prompt=PROMPT, temperature=0, stream=True, echo=True))
    assert "".join(piece.choices[0].text for piece in pieces) == PROMPT + GREEDY[:16]


def test_several_prompts_are_several_choices(client: OpenAI) -> None:
    prompts = [PROMPT, PROMPT[::-1]]
    done = client.completions.create(model=MODEL, prompt=prompts, max_tokens=8, temperature=1, seed=3, n=2)
    expected = [
        text_of(prompt, tokens=8, temperature=1, seed=3, choice=choice) for prompt in prompts for choice in (0, 1)
    ]
    assert [choice.text for choice in done.choices] == expected
    assert [choice.index for choice in done.choices] == [0, 1, 2, 3]
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (16, 32)


def test_a_seed_makes_sampled_text_a_function_of_the_request(client: OpenAI) -> None:
    first, again, other = (chat(client, temperature=0.9, seed=seed) for seed in (7, 7, 8))
    assert first.choices[0].message.content == text_of(PROMPT, tokens=TOKENS, temperature=0.9, seed=7)
    assert again.choices[0].message.content == first.choices[0].message.content
    assert other.choices[0].message.content != first.choices[0].message.content
    assert again.system_fingerprint == first.system_fingerprint


def test_n_choices_have_seeds_of_their_own_and_can_be_streamed_together(client: OpenAI) -> None:
    expected = [text_of(PROMPT, tokens=TOKENS, temperature=1, seed=7, choice=choice) for choice in range(3)]
    assert len(set(expected)) == 3
    done = chat(client, temperature=1, seed=7, n=3)
    assert [choice.message.content for choice in done.choices] == expected
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (8, 3 * TOKENS)
    assert texts(streamed(client, temperature=1, seed=7, n=3), choices=3) == expected


@pytest.mark.parametrize("as_list", [False, True])
def test_a_stop_string_ends_the_text_before_itself(client: OpenAI, as_list: bool) -> None:
    stop = GREEDY[9:11]
    done = chat(client, stop=[stop, "never"] if as_list else stop)
    assert done.choices[0].message.content == GREEDY[: GREEDY.index(stop)]
    assert done.choices[0].finish_reason == "stop"
    assert texts(streamed(client, stop=stop)) == [GREEDY[: GREEDY.index(stop)]]


def test_models_are_listed_and_described(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL, "cosine"]
    described = client.models.retrieve(MODEL)
    assert (described.id, (described.model_extra or {})["max_model_len"]) == (MODEL, 4096)
    assert chat(client, model="cosine").choices[0].message.content == GREEDY
    with pytest.raises(NotFoundError):
        client.models.retrieve("gpt-5")


def test_a_wrong_key_is_refused(gateway: ServedGateway) -> None:
    for key in ("wrong", KEY + "x"):
        with OpenAI(base_url=gateway.base_url, api_key=key, max_retries=0) as stranger:
            with pytest.raises(AuthenticationError) as refused:
                chat(stranger)
            assert refused.value.code == "invalid_api_key"
    with OpenAI(base_url=gateway.base_url, api_key="another-key") as friend:
        assert chat(friend).choices[0].message.content == GREEDY


@pytest.mark.parametrize(
    ("options", "param", "code"),
    [
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"top_p": 1.5}, "top_p", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "invalid_value"),
        ({"seed": -1}, "seed", "invalid_value"),
        ({"logprobs": True}, "logprobs", "unsupported_parameter"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "unsupported_parameter"),
        ({"presence_penalty": 0.5}, "presence_penalty", "unsupported_parameter"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "unsupported_parameter"),
    ],
)
def test_what_cannot_be_is_refused_by_name(client: OpenAI, options: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        chat(client, **options)
    assert (refused.value.param, refused.value.code, refused.value.type) == (param, code, "invalid_request_error")


def test_other_errors_have_their_status(client: OpenAI) -> None:
    with pytest.raises(NotFoundError) as unknown:
        chat(client, model="gpt-5")
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(BadRequestError) as long:
        chat(client, PROMPT * 600)
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "messages")
    with pytest.raises(APIStatusError) as not_allowed:
        client.get("/chat/completions", cast_to=object)
    assert not_allowed.value.status_code == 405


def test_parallel_requests_have_each_its_own_text(gateway: ServedGateway) -> None:
    prompts = [f"{PROMPT[:6]}{first}{second}" for first in "0123" for second in "4567"]

    async def ask() -> list[str | None]:
        async with AsyncOpenAI(base_url=gateway.base_url, api_key=KEY, max_retries=0) as openai:
            done = await asyncio.gather(
                *(
                    openai.chat.completions.create(
                        model=MODEL, messages=said(prompt), max_tokens=TOKENS, temperature=0.7, seed=number
                    )
                    for number, prompt in enumerate(prompts)
                )
            )
            return [each.choices[0].message.content for each in done]

    expected = [
        text_of(prompt, tokens=TOKENS, temperature=0.7, seed=number) for number, prompt in enumerate(prompts)
    ]
    assert len(prompts) == 16
    assert asyncio.run(ask()) == expected
