"""Messages as the `anthropic` package sees them, over a socket."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from anthropic import Anthropic, AuthenticationError, BadRequestError, NotFoundError
from anthropic.types import TextBlock

from tests.node.gateway.gateways import MODEL, PROMPT, ServedGateway, served, text_of

pytestmark = pytest.mark.network

KEY: Final = "a-key"
TOKENS: Final = 20
GREEDY: Final = text_of(PROMPT, tokens=TOKENS)
ASKED: Final[dict[str, Any]] = {
    "model": MODEL,
    "max_tokens": TOKENS,
    "extra_body": {"temperature": 0},
    "messages": [{"role": "user", "content": PROMPT}],
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[ServedGateway]:
    with served(api_keys=(KEY,)) as running:
        yield running


@pytest.fixture(scope="module")
def client(gateway: ServedGateway) -> Iterator[Anthropic]:
    with Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as anthropic:
        yield anthropic


def test_a_message_is_the_targets_text(client: Anthropic) -> None:
    done = client.messages.create(**ASKED)
    (block,) = done.content
    assert isinstance(block, TextBlock) and block.text == GREEDY
    assert (done.stop_reason, done.model, done.role) == ("max_tokens", MODEL, "assistant")
    assert (done.usage.input_tokens, done.usage.output_tokens) == (8, TOKENS)


def test_a_stream_is_the_same_text_in_pieces(client: Anthropic) -> None:
    with client.messages.stream(**ASKED) as stream:
        assert "".join(stream.text_stream) == GREEDY
        done = stream.get_final_message()
    assert (done.stop_reason, done.usage.input_tokens, done.usage.output_tokens) == ("max_tokens", 8, TOKENS)


def test_a_stop_sequence_is_told(client: Anthropic) -> None:
    stop = GREEDY[6:8]
    with client.beta.messages.stream(**ASKED, stop_sequences=[stop]) as stream:
        done = stream.get_final_message()
    assert (done.stop_reason, done.stop_sequence) == ("stop_sequence", stop)


def test_tokens_are_counted_and_models_listed(client: Anthropic) -> None:
    counted = client.messages.count_tokens(model=MODEL, messages=ASKED["messages"])
    assert counted.input_tokens == len(PROMPT)
    assert [model.id for model in client.models.list()] == [MODEL, "cosine"]


def test_errors_have_anthropics_shape(client: Anthropic, gateway: ServedGateway) -> None:
    with pytest.raises(BadRequestError) as refused:
        client.messages.create(**ASKED | {"extra_body": {"top_p": 7}})
    assert refused.value.type == "invalid_request_error" and refused.value.request_id
    with pytest.raises(NotFoundError):
        client.messages.create(**ASKED | {"model": "claude-x"})
    with (
        Anthropic(base_url=gateway.url, api_key="other", max_retries=0) as stranger,
        pytest.raises(AuthenticationError),
    ):
        stranger.messages.create(**ASKED)
    with Anthropic(base_url=gateway.url, auth_token=KEY, api_key=None, max_retries=0) as bearer:
        assert bearer.messages.create(**ASKED).stop_reason == "max_tokens"
