"""Fake states of swarms: thousands of nodes, and nodes with hostile texts in every field."""

import random
from collections.abc import Iterable
from typing import Any, Final

from cosine_gateway.page.swarm_facts import swarm_facts
from cosine_lab.simulation.swarm import numbered_identity
from cosine_node.advice.own_machine import OwnMachine
from cosine_p2p.survey import NodeSight, Survey
from cosine_protocol.records import NetworkCoordinate, Role
from tests.cosine_p2p.samples import record_of

HOSTILE: Final = {
    "a script": "<script>window.hit=1</script><img src=x onerror=window.hit=1>",
    "an attribute": '" onmouseover="window.hit=1" x=\'',
    "a template": "{{constructor.constructor('window.hit=1')()}} ${window.hit=1} <%= 1 %>",
    "a link": "javascript:window.hit=1",
    "turned around": "safe\u202e\u2066exe.txt\u202c\u2069\u200f",
    "controls": "\x00\x07\x1b[2J\x1b]0;owned\x07\r\n\u2028\u0085",
    "no end": "W" * 10_000,
    "many marks": "e" + "\u0301" * 400,
    "a shell": "'; rm -rf ~ #`id`$(id)",
    "a prototype": "__proto__",
}
TURNING: Final = "[\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\u0000-\\u0008\\u001b]"
"""A JavaScript pattern of characters that must not appear on a page."""


def node_sight(number: int, *, rtt_s: float = 0.02) -> NodeSight:
    """One node; every twentieth is a verifier."""
    rng = random.Random(number)
    identity, is_verifier = numbered_identity(number + 1), number % 20 == 0
    subject = rng.choice(("code", "prose", "math", "law", "medicine"))
    x_us, y_us = (int(1000 * rng.gauss(rng.choice(centres), 9)) for centres in ((-60, 0, 45), (-20, 25)))
    record = record_of(
        identity,
        now_s=0.0,
        role=Role.VERIFIER if is_verifier else Role.DRAFTER,
        target="zoo:target",
        model="zoo:target" if is_verifier else f"zoo:draft-{subject}",
        numerics="bfloat16",
        expertise=() if is_verifier else (subject,),
        capacity_requests=16,
        load_requests=rng.randrange(17),
        pass_us=rng.randrange(5_000, 90_000),
        addresses=(f"/ip4/203.0.113.{number % 250}/tcp/31337/p2p/{identity.peer_id}",),
        coordinate=NetworkCoordinate(x_us, y_us, 0, 4_000, 100),
    )
    reason = "no answer within 4 s" if rng.random() < 0.04 else ""
    return NodeSight(record=record, rtt_s=rtt_s, passes=1000, reason=reason)


def told_swarm(nodes: Iterable[NodeSight]) -> dict[str, Any]:
    """A swarm as sent to the page."""
    survey = Survey(target="zoo:target", nodes=tuple(nodes), problem="")
    return {**swarm_facts(survey, OwnMachine()), "entrance": [], "invitation": None, "trend": []}


def told_machine(*, text: str = "") -> dict[str, Any]:
    """A machine as sent to the page; `text` replaces all of its texts."""
    return {
        "cores": 8,
        "memory_bytes": 11 << 30,
        "devices": [{"name": text or "NVIDIA GeForce RTX 3060", "memory_bytes": int(5.5 * 2**30)}],
        "disk_bytes": 212 << 30,
        "lacks": [text] if text else [],
        "reach": {
            "result": "warning",
            "found": text
            or "this machine is behind NAT, as 192.168.1.20: unless its router opens a port by itself (UPnP), "
            "peers reach it through initial peers that relay",
            "fix": text or "Name two `bootstrap` nodes as initial peers.",
        },
        "given_bytes": int(0.85 * 5.5 * 2**30),
        "fits": {
            "layers": "18:20",
            "bytes": 4 << 30,
            "is_whole": False,
            "whole_bytes": 61 << 30,
            "of": 28,
            "dtype": "bfloat16",
        },
    }


def crowd(nodes: int, *, turn: int = 0) -> dict[str, Any]:
    """A swarm whose round-trip times change with every turn."""
    return told_swarm(node_sight(number, rtt_s=(5 + (7 * number + turn) % 180) / 1e3) for number in range(nodes))


def hostile_swarm() -> dict[str, Any]:
    """A node for each hostile text, which fills every field that a peer controls."""
    texts = HOSTILE.values()
    swarm = told_swarm(map(node_sight, range(len(HOSTILE))))
    for number, (node, text) in enumerate(zip(swarm["nodes"], texts, strict=True)):
        node |= dict.fromkeys(("model", "target", "numerics", "software", "emulated", "reason", "role"), text)
        node |= {"expertise": [text, text], "addresses": [text]}
        if number % 2:
            node["peer_id"] = text
    kinds = [{"target_digest": text, "numerics": text} for text in texts]
    stages = [{"peer_id": text, "layers": text, "pass_s": 0.1} for text in texts]
    speeds = {"tokens_per_s": 8.3, "acceptance": 0.6, "drafted_tokens_per_s": 20.6, "way_s": 0.04, "pass_s": 0.12}
    return {
        **swarm,
        "coverage": [{**kind, "holders": holders} for holders in ([1, 1, 1], [1, 0, 1]) for kind in kinds],
        "outlook": [{**kind, "stages": stages, **speeds, "problem": ""} for kind in kinds],
        "entrance": ["--network", *texts],
        "problem": HOSTILE["a script"],
    }


def hostile_reply() -> list[dict[str, Any]]:
    """The chunks of a reply in which every text is hostile."""
    texts = list(HOSTILE.values())
    tokens = [
        {
            "token": number,
            "source": text,
            "is_copied": False,
            "round": number + 1,
            "confidence": 0.5,
            "content": text[:200],
            "reasoning": text[:200],
        }
        for number, text in enumerate(texts)
    ]
    account = {
        "seconds": 2.0,
        "time_to_first_token_s": 0.5,
        "tokens": len(texts),
        "rounds": 4,
        "accepted": 3,
        "offered": 4,
        "plain_pass_s": 0.2,
        "coordinator": texts[0],
        "why": texts,
        "verifiers": [{"peer_id": text, "rtt_ms": 4.0, "tokens": 3} for text in texts],
        "drafters": [
            {"peer_id": text, "domain": text, "drafted": 9, "accepted": 3, "rtt_ms": 2.0} for text in texts
        ],
        "proof": {
            "format": texts[0],
            "evidence": [{"claim": text, "statements": [{"auditor": text}]} for text in texts],
        },
    }
    said = "\n\n".join(texts)
    delta = {"content": said, "reasoning_content": said}
    first = {"choices": [{"delta": delta, "provenance": tokens}]}
    return [first, {"choices": [{"delta": {}, "account": account}]}, {"error": {"message": said}}]
