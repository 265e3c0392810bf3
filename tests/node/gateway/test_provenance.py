"""`provenance` tells whose each token of a chat is, who wrote it, and proves it; nobody else sees any of it."""

from typing import Any

from cosine_node.gateway.provenance import PROOF_FORMAT
from cosine_p2p.trust.audit_rule import AuditState
from cosine_p2p.trust.evidence import evidence_of_json
from tests.node.gateway.gateways import PROMPT, Gateway, asked, text_of, with_gateway

TOKENS = 40
BODY = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": TOKENS}


def choices_of(**more: Any) -> list[Any]:
    """The choices of all pieces of a streamed chat."""
    reply = asked("POST", "/v1/chat/completions", {**BODY, "stream": True, **more})
    return [choice for event in reply.events if event != "[DONE]" for choice in event["choices"]]


def test_each_token_comes_with_its_origin_beside_its_text() -> None:
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


def test_the_account_in_the_end_says_who_wrote_it_and_how_fast() -> None:
    *_, last = choices_of(provenance=True)
    account = last["account"]
    assert account["tokens"] == TOKENS and account["seconds"] > 0
    assert sum(each["tokens"] for each in account["verifiers"]) == TOKENS
    assert sum(each["accepted"] for each in account["drafters"]) == account["accepted"] > 0
    assert account["rounds"] < TOKENS


def test_the_proof_is_what_the_verifier_signed_for_this_text() -> None:
    *_, last = choices_of(provenance=True)
    proof = last["account"]["proof"]
    (piece,) = evidence_of_json(proof["evidence"])
    opened = piece.open()
    assert proof["format"] == PROOF_FORMAT and opened.state is AuditState.UNANSWERED
    assert opened.claim.author == last["account"]["verifiers"][0]["peer_id"]
    assert len(opened.claim.tokens) == TOKENS


def test_a_whole_reply_has_all_of_it_too() -> None:
    (choice,) = asked("POST", "/v1/chat/completions", {**BODY, "provenance": True}).json["choices"]
    assert len(choice["provenance"]) == TOKENS and choice["account"]["proof"]["evidence"]


def test_a_drafter_is_paid_by_a_receipt_that_the_proof_holds() -> None:
    async def twice(gateway: Gateway) -> Any:
        # The first request reaches the drafter, the second finds it known.
        for _ in range(2):
            reply = await gateway.post("/v1/chat/completions", {**BODY, "provenance": True})
        return reply.json["choices"][0]["account"]

    account = with_gateway(twice)
    assert len(account["proof"]["receipts"]) == len(account["drafters"]) == 1


def test_who_does_not_ask_sees_nothing_of_it() -> None:
    assert not any({"provenance", "account"} & set(choice) for choice in choices_of())
    refused = asked("POST", "/v1/chat/completions", {**BODY, "provenance": 1})
    assert refused.status == 400 and refused.error["param"] == "provenance"
