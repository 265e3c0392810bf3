"""The gateway behind LangChain's `ChatOpenAI`."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.node.gateway.letters import MODEL, PROMPT, text_of
from tests.node.gateway.serving import ServedGateway, served

pytestmark = pytest.mark.network

TOKENS: Final = 16
GREEDY: Final = text_of(PROMPT, tokens=TOKENS)


@pytest.fixture(scope="module")
def gateway() -> Iterator[ServedGateway]:
    with served() as running:
        yield running


def model(gateway: ServedGateway, **options: Any) -> ChatOpenAI:
    settings: dict[str, Any] = {"temperature": 0, "max_completion_tokens": TOKENS, **options}
    return ChatOpenAI(model=MODEL, base_url=gateway.base_url, api_key=SecretStr("none"), **settings)


def test_invoke(gateway: ServedGateway) -> None:
    answer = model(gateway).invoke(PROMPT)
    assert answer.content == GREEDY
    assert answer.response_metadata["finish_reason"] == "length"
    assert isinstance(answer, AIMessage) and answer.usage_metadata is not None
    assert (answer.usage_metadata["input_tokens"], answer.usage_metadata["output_tokens"]) == (8, TOKENS)


def test_stream(gateway: ServedGateway) -> None:
    pieces = list(model(gateway, stream_usage=True).stream(PROMPT))
    assert "".join(str(piece.content) for piece in pieces) == GREEDY
    assert len(pieces) > 2
    assert sum(p.usage_metadata["output_tokens"] for p in pieces if p.usage_metadata) == TOKENS


def test_a_conversation_with_parts_seed_and_stop(gateway: ServedGateway) -> None:
    stop = GREEDY[6:8]
    parts: list[str | dict[Any, Any]] = [{"type": "text", "text": PROMPT[4:]}]
    talk = [HumanMessage(PROMPT[:2]), AIMessage(PROMPT[2:4]), HumanMessage(content=parts)]
    assert model(gateway, stop_sequences=[stop]).invoke(talk).content == GREEDY[: GREEDY.index(stop)]
    sampled = model(gateway, temperature=1.0, seed=9).invoke(talk).content
    assert sampled == text_of(PROMPT, tokens=TOKENS, temperature=1.0, seed=9)
