"""With `provenance`, a chat has the origin of each token, its account and its proof; without it, none of them."""

from functools import cache
from typing import Any

import pytest

from cosine_gateway.choices_reply import PROOF_FORMAT
from cosine_p2p.trust.audit_rule import AuditState
from cosine_p2p.trust.evidence import evidence_of_json
from tests.gateway.gateways import PROMPT, asked, text_of
from tests.gateway.played import played_swarm

TOKENS = 40
CITIES = [{"type": "function", "function": {"name": "look_up"}}]
BODY = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": TOKENS}


@cache
def choices_of(**more: Any) -> list[Any]:
    """The choices of all pieces of a streamed chat."""
    reply = asked("POST", "/v1/chat/completions", {**BODY, "stream": True, **more})
    return [choice for event in reply.events for choice in event["choices"]]


def test_each_token_has_its_origin() -> None:
    choices = choices_of(provenance=True)
    tokens = [token for choice in choices for token in choice["provenance"]]
    assert len(tokens) == TOKENS
    assert "".join(token["content"] for token in tokens) == text_of(PROMPT, tokens=TOKENS)
    told = shown = ""
    for choice in choices:
        told += "".join(token["content"] for token in choice["provenance"])
        shown += choice["delta"].get("content", "")
        assert told.startswith(shown)
    drafted = [token for token in tokens if token["source"] != "target"]
    assert drafted and all(0 < token["confidence"] <= 1 for token in drafted)
    assert all(token["confidence"] is None for token in tokens if token["source"] == "target")
    assert [token["round"] for token in tokens] == sorted(token["round"] for token in tokens)


def test_the_final_account_names_the_authors_and_has_a_proof() -> None:
    *_, last = choices_of(provenance=True)
    account = last["account"]
    assert account["tokens"] == TOKENS > account["rounds"] and account["seconds"] > 0
    assert sum(each["tokens"] for each in account["verifiers"]) == TOKENS
    assert sum(each["accepted"] for each in account["drafters"]) == account["accepted"] > 0
    (piece,) = evidence_of_json(account["proof"]["evidence"])
    opened = piece.open()
    assert account["proof"]["format"] == PROOF_FORMAT and opened.state is AuditState.UNANSWERED
    assert opened.claim.author == account["verifiers"][0]["peer_id"]
    assert len(opened.claim.tokens) == TOKENS


@pytest.mark.parametrize(
    ("said", "more"),
    [
        ("The end, STO", {"stop": "STOP"}),
        ("The end, STO", {"stop": "STOP", "max_tokens": 12}),
        ('A sentence <tool_call>{"name": 1}', {"tools": CITIES}),
        ("White space \n", {"tools": CITIES}),
        ("<think>Hm</think> Ah <thi", {"max_tokens": 22}),
    ],
)
def test_text_held_until_the_end_belongs_to_its_last_tokens(said: str, more: dict[str, Any]) -> None:
    def told(*choices: Any) -> list[str]:
        tokens = [token for choice in choices for token in choice["provenance"]]
        return ["".join(token[field] for token in tokens) for field in ("content", "reasoning")]

    body = {"messages": [{"role": "user", "content": "go"}], "temperature": 0, "provenance": True, **more}

    reply, streamed = (
        asked("POST", "/v1/chat/completions", body | {"stream": each}, swarm_of=played_swarm(lambda _: said))
        for each in (False, True)
    )
    (whole,) = reply.json["choices"]
    message = whole["message"]
    assert told(whole) == [message["content"], message.get("reasoning_content", "")] and any(told(whole))
    assert (
        len(whole["provenance"]) == reply.json["usage"]["completion_tokens"]
        and whole["account"]["proof"]["evidence"]
    )
    pieces = [choice for event in streamed.events for choice in event["choices"]]
    assert told(*pieces) == told(whole)
    shown = [
        "".join(piece["delta"].get(name) or "" for piece in pieces) for name in ("content", "reasoning_content")
    ]
    assert told(*pieces) == shown


def test_provenance_is_omitted_unless_requested() -> None:
    assert not any({"provenance", "account"} & set(choice) for choice in choices_of())
    refused = asked("POST", "/v1/chat/completions", {**BODY, "provenance": 1})
    assert refused.status == 400 and refused.error["param"] == "provenance"
