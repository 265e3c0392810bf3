"""The files of the page are public; its API (the swarm, proofs, audits) needs the gateway's key."""

import asyncio
import json
from dataclasses import asdict
from typing import Any
from unittest.mock import AsyncMock

import pytest

from cosine_gateway.page.files import POLICY, read_assets
from cosine_p2p.trust.audit_rule import AuditState
from cosine_p2p.trust.evidence import Evidence, evidence_of_json
from cosine_protocol.digests import request_digest
from cosine_protocol.errors import PeerLost
from cosine_protocol.records import Role
from tests.cosine_p2p.trust.test_audit_rule import FORGERIES, piece_of
from tests.gateway.gateways import MODEL, PROMPT, Gateway, Reply, asked, call, in_gateway

KEY = {"authorization": "Bearer k1"}
LOCKED: dict[str, Any] = {"api_keys": ("k1",)}
CHAT = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 40, "provenance": True}


def events_of(reply: Reply) -> list[tuple[str, Any]]:
    """The names and bodies of a stream's events."""
    found = []
    for block in reply.body.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


@pytest.mark.parametrize("path", ["/", "/page/page.js", "/v1/swarm", "/v1/swarm/events"])
def test_names_and_pages_of_strangers_are_refused_as_elsewhere(path: str) -> None:
    assert not path.startswith("/v1") or asked("GET", path, **LOCKED).status == 401
    assert asked("GET", path, headers={"host": "evil.example"}).status == 421
    assert asked("GET", path, headers={"origin": "https://evil.example"}).status == 403


def test_the_page_is_served_without_a_key_and_loads_nothing_from_elsewhere() -> None:
    page = asked("GET", "/", **LOCKED)
    assert page.status == 200 and page.headers["content-type"].startswith("text/html")
    assert page.headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY and "http" not in POLICY and "*" not in POLICY


@in_gateway()
async def test_each_file_is_served_compressed_where_the_browser_takes_that(gateway: Gateway) -> None:
    for name, asset in read_assets().items():
        path = "/" if name == "index.html" else f"/page/{name}"
        plain = await gateway.get(path)
        small = await gateway.get(path, headers={"accept-encoding": "gzip, br"})
        assert (plain.body, small.body) == (asset.body, asset.compressed)
        assert small.headers["content-encoding"] == "gzip"
        again = await gateway.get(path, headers={"if-none-match": plain.headers["etag"]})
        assert (again.status, again.body) == (304, b"")


def test_no_other_file_is_served() -> None:
    assert asked("GET", "/page/routes.py").status == asked("GET", "/page/../assets.py").status == 404


def test_the_swarm_is_told_with_its_nodes() -> None:
    swarm = asked("GET", "/v1/swarm", headers=KEY, **LOCKED).json
    assert [node["role"] for node in swarm["nodes"]] == ["verifier", "drafter"]
    assert swarm["problem"] == "" and swarm["trend"] == [] and swarm["coverage"] == []


@in_gateway()
async def test_watchers_see_a_node_that_dies_and_a_generation_that_ends(gateway: Gateway) -> None:
    left = asyncio.Event()
    watching = asyncio.ensure_future(call(gateway.app, "GET", "/v1/swarm/events", hang_up=left))
    await asyncio.sleep(1.0)
    await gateway.post("/v1/chat/completions", CHAT)
    await gateway.swarm.members[1].kill()
    await asyncio.sleep(30.0)
    left.set()
    (first, swarm), *later = events_of(await watching)
    assert first == "swarm" and {name for name, _ in later} == {"change"}
    dead = swarm["nodes"][1]["peer_id"]
    assert any(
        node["peer_id"] == dead and node.get("reason") for _, told in later for node in told.get("nodes", [])
    )
    (point,) = next(told["trend"] for _, told in later if "trend" in told)
    assert point["tokens"] == 40 and point["tokens_per_pass"] > 1 and point["acceptance"] > 0.5


@in_gateway(verifiers=3)
async def test_the_signed_text_of_a_verifier_is_judged_by_the_others(gateway: Gateway) -> None:
    # Auditors are found by the digest of their target.
    for record in await gateway.swarm.directory.find(Role.VERIFIER, MODEL):
        await gateway.swarm.directory.announce(record, [record.target_digest.hex()])
    done = await gateway.post("/v1/chat/completions", CHAT)
    proof = done.json["choices"][0]["account"]["proof"]
    audited = await gateway.post("/v1/audits", {"evidence": proof["evidence"]})
    (piece,) = evidence_of_json(audited.json["evidence"])
    opened = piece.open()
    assert opened.state is AuditState.PASSED and opened.verdicts[0].different == 0


@pytest.mark.parametrize("path", ["/v1/audits", "/v1/proofs"])
@pytest.mark.parametrize("evidence", [None, [], "x", [{"claim": 1}], [{"claim": "", "statements": []}] * 5])
def test_what_is_no_evidence_is_refused(evidence: Any, path: str) -> None:
    reply = asked("POST", path, {"evidence": evidence})
    assert reply.status == 400 and reply.error["param"] == "evidence"


@in_gateway()
async def test_proofs_beyond_the_limit_are_refused_unread(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check_slowly(check: Any, *given: Any) -> Any:
        await asyncio.sleep(1.0)
        return check(*given)

    monkeypatch.setattr(asyncio, "to_thread", check_slowly)
    body = {"evidence": [asdict(piece_of())]}
    many = [gateway.post("/v1/proofs", body) for _ in range(60)]
    replies = await asyncio.gather(*many, gateway.post("/v1/proofs", b"{"))
    *statuses, last = (reply.status for reply in replies)
    assert 0 < statuses.count(503) == 60 - statuses.count(200) and last == 503


def checked(*pieces: Evidence) -> Any:
    """The gateway's check of a proof."""
    return asked("POST", "/v1/proofs", {"evidence": [asdict(each) for each in pieces]}).json


@pytest.mark.parametrize(
    ("different", "state"),
    [((), "unanswered"), ((0,), "passed"), ((3,), "suspected"), ((3, 0), "disputed"), ((3, 3), "convicted")],
)
def test_a_proof_comes_to_what_its_signatures_say(different: tuple[int, ...], state: str) -> None:
    found = checked(piece_of(*different))
    assert (found["state"], found["signatures"]) == (state, 1 + len(different))
    [part] = found["parts"]
    claim = piece_of().open().claim
    assert part["digest"] == request_digest(claim.request).hex() and part["tokens"] == list(claim.tokens)
    assert [(each["accuses"], each["different"]) for each in part["judgements"]] == [(n > 0, n) for n in different]


@pytest.mark.parametrize("pieces", [*([each] for each in FORGERIES.values()), [piece_of(), piece_of(nonce=1)]])
def test_a_proof_that_does_not_hold_says_why(pieces: list[Evidence]) -> None:
    assert list(checked(*pieces)) == ["problem"]


@in_gateway()
async def test_an_audit_whose_look_up_fails_is_answered_with_the_reason(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = await gateway.post("/v1/chat/completions", CHAT)
    lost = PeerLost("peer", "no node of the network answered a look-up")
    monkeypatch.setattr(gateway.swarm.directory, "find", AsyncMock(side_effect=lost))
    proof = done.json["choices"][0]["account"]["proof"]
    reply = await gateway.post("/v1/audits", {"evidence": proof["evidence"]})
    told = gateway.told[-1]
    assert reply.status == 503 and reply.error["code"] == "no_verifier" and "retry-after" in reply.headers
    assert told["status"] == 503 and told["error"] == reply.error["message"]


def test_evidence_that_does_not_hold_is_asked_of_nobody() -> None:
    forged = {"claim": "AAAA", "statements": []}
    assert asked("POST", "/v1/audits", {"evidence": [forged]}).json == {"evidence": [forged]}
