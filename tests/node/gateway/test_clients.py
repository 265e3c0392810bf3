"""The gateway as the `openai` package and LangChain's `ChatOpenAI` see it, over a socket."""

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI
from openai import APIStatusError, AsyncOpenAI, AuthenticationError, BadRequestError, NotFoundError, OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import SecretStr

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_protocol.request import Sampling, Shaping, TokenBias
from tests.node.gateway.gateways import MODEL, PROMPT, ServedGateway, served, text_of
from tests.swarm.reference import plain_stream

pytestmark = pytest.mark.network

KEY: Final = "a-key"
TOKENS: Final = 20
LETTERS: Final = LetterCodec()
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


def test_a_stream_is_the_same_text_in_pieces(client: OpenAI) -> None:
    chunks = streamed(client)
    assert texts(chunks) == [GREEDY]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["length"]
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert all(chunk.usage is None for chunk in chunks)
    report = (chunks[-1].model_extra or {})["metrics"]["speculative_decoding"]
    assert report["rounds"] + report["accepted"] == TOKENS
    # Usage comes last where it is asked for.
    *chunks, last = streamed(client, stream_options={"include_usage": True})
    assert texts(chunks) == [GREEDY]
    assert last.choices == [] and last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (8, TOKENS)
    assert all(chunk.usage is None for chunk in chunks)
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


def test_n_choices_have_seeds_of_their_own_and_can_be_streamed_together(client: OpenAI) -> None:
    expected = [text_of(PROMPT, tokens=TOKENS, temperature=1, seed=7, choice=choice) for choice in range(3)]
    assert len(set(expected)) == 3
    done = chat(client, temperature=1, seed=7, n=3)
    assert [choice.message.content for choice in done.choices] == expected
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (8, 3 * TOKENS)
    assert texts(streamed(client, temperature=1, seed=7, n=3), choices=3) == expected


def test_a_stop_string_ends_the_text_before_itself(client: OpenAI) -> None:
    stop = GREEDY[9:11]
    done = chat(client, stop=[stop, "never"])
    assert done.choices[0].message.content == GREEDY[: GREEDY.index(stop)]
    assert done.choices[0].finish_reason == "stop"
    assert texts(streamed(client, stop=stop)) == [GREEDY[: GREEDY.index(stop)]]


def test_what_shapes_the_text_is_honoured(client: OpenAI) -> None:
    asked: dict[str, Any] = {
        "presence_penalty": 1.5,
        "frequency_penalty": 0.5,
        "logit_bias": {"3": 2.5, "5": -100},
        "extra_body": {"bad_words": ["7", "89"], "min_tokens": 3},
    }
    shaping = Shaping(
        presence_penalty=1.5,
        frequency_penalty=0.5,
        logit_bias=(TokenBias(3, 2.5), TokenBias(5, -100.0)),
        bad_words=(LETTERS.encode("7"), LETTERS.encode("89")),
    )
    expected = LETTERS.decode(plain_stream(PROMPT, Sampling(shaping=shaping), tokens=TOKENS))
    assert chat(client, **asked).choices[0].message.content == expected != GREEDY
    assert texts(streamed(client, **asked)) == [expected]
    stop = LETTERS.encode(GREEDY[6])[0]
    done = chat(client, extra_body={"stop_token_ids": [stop]})
    assert (done.choices[0].message.content, done.choices[0].finish_reason) == (
        GREEDY[: GREEDY.index(GREEDY[6])],
        "stop",
    )


def test_prompts_of_token_ids_and_what_other_servers_take_besides_numbers(client: OpenAI) -> None:
    ids = list(LETTERS.encode(PROMPT))
    for prompt in (ids, [ids], [PROMPT]):
        done = client.completions.create(model=MODEL, prompt=prompt, max_tokens=TOKENS, temperature=0, echo=True)
        assert [choice.text for choice in done.choices] == [PROMPT + GREEDY]
    extra = {"max_tokens": 20.0, "seed": -1, "stop": ["", *(f"zz{n}" for n in range(60))], "top_p": 0, "n": None}
    assert chat(client, extra_body=extra).choices[0].message.content == GREEDY
    assert chat(client, max_tokens=-1, stop=GREEDY[9:11]).choices[0].finish_reason == "stop"


def test_a_prompt_can_be_told_again_alone(client: OpenAI) -> None:
    done = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=0, echo=True)
    assert (done.choices[0].text, done.choices[0].finish_reason) == (PROMPT, "length")
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (8, 0)
    pieces = client.completions.create(model=MODEL, prompt=[[1, 2], [3]], max_tokens=0, echo=True, stream=True)
    said = [(choice.index, choice.text) for piece in pieces for choice in piece.choices if choice.text]
    assert sorted(said) == [(0, LETTERS.decode([1, 2])), (1, LETTERS.decode([3]))]
    assert client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=0).choices[0].text == ""


def test_models_are_listed_and_described(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL, "cosine"]
    described = client.models.retrieve(MODEL)
    extra = described.model_extra or {}
    assert (described.id, extra["max_model_len"], extra["context_length"]) == (MODEL, 4096, 4096)
    assert extra["meta"]["n_ctx_train"] == 4096
    assert chat(client, model="cosine").choices[0].message.content == GREEDY
    with pytest.raises(NotFoundError):
        client.models.retrieve("gpt-5")


def test_a_wrong_key_is_refused(gateway: ServedGateway) -> None:
    with OpenAI(base_url=gateway.base_url, api_key=KEY + "x", max_retries=0) as stranger:
        with pytest.raises(AuthenticationError) as refused:
            chat(stranger)
        assert refused.value.code == "invalid_api_key"
    with OpenAI(base_url=gateway.base_url, api_key="another-key") as friend:
        assert chat(friend).choices[0].message.content == GREEDY


def test_errors_have_their_status(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as hot:
        chat(client, temperature=-1)
    assert (hot.value.param, hot.value.code, hot.value.type) == (
        "temperature",
        "invalid_value",
        "invalid_request_error",
    )
    with pytest.raises(BadRequestError) as unsupported:
        chat(client, functions=[{"name": "f"}])
    assert (unsupported.value.param, unsupported.value.code) == ("functions", "unsupported_parameter")
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
    prompts = [f"{PROMPT[:6]}{first}{second}" for first in "01" for second in "4567"]

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
    assert len(prompts) == 8
    assert asyncio.run(ask()) == expected


def test_langchain_answers_and_streams_a_conversation_with_parts_seed_and_stop(gateway: ServedGateway) -> None:
    def model(**options: Any) -> ChatOpenAI:
        settings: dict[str, Any] = {"temperature": 0, "max_completion_tokens": TOKENS, **options}
        return ChatOpenAI(model=MODEL, base_url=gateway.base_url, api_key=SecretStr(KEY), **settings)

    parts: list[str | dict[Any, Any]] = [{"type": "text", "text": PROMPT[4:]}]
    talk = [HumanMessage(PROMPT[:2]), AIMessage(PROMPT[2:4]), HumanMessage(content=parts)]
    answer = model().invoke(talk)
    assert (answer.content, answer.response_metadata["finish_reason"]) == (GREEDY, "length")
    assert isinstance(answer, AIMessage) and answer.usage_metadata is not None
    assert (answer.usage_metadata["input_tokens"], answer.usage_metadata["output_tokens"]) == (8, TOKENS)
    pieces = list(model(stream_usage=True).stream(PROMPT))
    assert "".join(str(piece.content) for piece in pieces) == GREEDY and len(pieces) > 2
    assert sum(p.usage_metadata["output_tokens"] for p in pieces if p.usage_metadata) == TOKENS
    stop = GREEDY[6:8]
    assert model(stop_sequences=[stop]).invoke(talk).content == GREEDY[: GREEDY.index(stop)]
    sampled = model(temperature=1.0, seed=9).invoke(talk).content
    assert sampled == text_of(PROMPT, tokens=TOKENS, temperature=1.0, seed=9)


def test_log_probabilities_are_read_whole_and_in_pieces(client: OpenAI) -> None:
    (choice,) = chat(client, logprobs=True, top_logprobs=3).choices
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert "".join(each.token for each in choice.logprobs.content) == GREEDY
    assert all(each.logprob == each.top_logprobs[0].logprob <= 0 for each in choice.logprobs.content)
    pieces = [piece.choices[0].logprobs for piece in streamed(client, logprobs=True, top_logprobs=3)]
    assert [each for piece in pieces if piece for each in piece.content or ()] == choice.logprobs.content
    done = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=0, echo=True, logprobs=1)
    assert done.choices[0].logprobs is not None
    assert done.choices[0].logprobs.tokens == list(PROMPT)


def test_a_prediction_is_counted(client: OpenAI) -> None:
    usage = chat(client, prediction={"type": "content", "content": GREEDY}).usage
    assert usage is not None and usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.accepted_prediction_tokens == TOKENS
    assert usage.completion_tokens_details.rejected_prediction_tokens == 0
