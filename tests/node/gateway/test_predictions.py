"""A prediction changes no text, and the usage says how much of it came."""

from typing import Any

import pytest

from cosine_node.gateway.api_errors import ApiError
from cosine_node.gateway.text_request import parse_chat
from tests.node.gateway.gateways import MODEL, PROMPT, Gateway, Reply, text_of, with_gateway

TOKENS = 40
GREEDY = text_of(PROMPT, tokens=TOKENS)
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}]}


def chats(*predictions: Any) -> list[Reply]:
    """The replies to one chat with each of some predictions."""

    async def ask(running: Gateway) -> list[Reply]:
        body = {"model": MODEL, "temperature": 0, "max_tokens": TOKENS, **CHAT}
        return [await running.post("/v1/chat/completions", body | {"prediction": each}) for each in predictions]

    found: list[Reply] = with_gateway(ask, client={"max_drafters": 0})
    return found


def test_the_text_is_the_same_and_its_tokens_are_counted() -> None:
    whole = {"type": "content", "content": GREEDY}
    parts = {"type": "content", "content": [{"type": "text", "text": GREEDY[:7]}, {"type": "text", "text": "1111"}]}
    replies = [reply.json for reply in chats(None, whole, parts)]
    assert [reply["choices"][0]["message"]["content"] for reply in replies] == [GREEDY] * 3
    details = [reply["usage"]["completion_tokens_details"] for reply in replies]
    told = [(each["accepted_prediction_tokens"], each["rejected_prediction_tokens"]) for each in details]
    assert told == [(0, 0), (TOKENS, 0), (7, 4)]
    rounds = [reply["metrics"]["speculative_decoding"]["rounds"] for reply in replies]
    assert rounds[1] < rounds[2] < rounds[0]


@pytest.mark.parametrize(
    "prediction",
    [
        "text",
        {"type": "content"},
        {"type": "content", "content": 3},
        {"type": "image", "content": "text"},
        {"type": "content", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
        {"type": "content", "content": ["text"]},
        {"type": "content", "content": [{"type": "text"}]},
    ],
)
def test_what_is_no_text_is_refused_by_name(prediction: Any) -> None:
    with pytest.raises(ApiError) as refused:
        parse_chat(CHAT | {"prediction": prediction})
    assert (refused.value.status, refused.value.param) == (400, "prediction")
