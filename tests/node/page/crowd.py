"""Fake states of swarms: thousands of nodes, and nodes with hostile texts in every field."""

import random
from typing import Any, Final

from cosine_lab.simulation.swarm import numbered_identity

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


def told_node(number: int, **fields: Any) -> dict[str, Any]:
    """One node as sent to the page."""
    rng = random.Random(number)
    role = "verifier" if number % 20 == 0 else "drafter"
    peer_id = numbered_identity(number + 1).peer_id
    return {
        "peer_id": peer_id,
        "role": role,
        "target": "zoo:target",
        "target_digest": "ab" * 32,
        "model": "zoo:target" if role == "verifier" else f"zoo:draft-{rng.choice(('code', 'prose', 'math'))}",
        "numerics": "bfloat16",
        "expertise": [] if role == "verifier" else [rng.choice(("code", "prose", "math", "law", "medicine"))],
        "learns": False,
        "software": "cosine-p2p/0.9",
        "emulated": "",
        "capacity": 16,
        "load": rng.randrange(17),
        "pass_ms": round(rng.uniform(5, 90), 1),
        "context_tokens": 8192,
        "addresses": [f"/ip4/203.0.113.{number % 250}/tcp/31337/p2p/{peer_id}"],
        "way": rng.choice(("direct", "direct", "relayed")),
        "coordinate": {
            "x_ms": rng.gauss(rng.choice((-60, 0, 45)), 9),
            "y_ms": rng.gauss(rng.choice((-20, 25)), 8),
            "z_ms": 0.0,
            "height_ms": 4.0,
            "error": 0.1,
        },
        "layers": None,
        "busy": None,
        "rtt_ms": round(rng.uniform(4, 190), 1),
        "passes": 1000,
        "reason": "no answer within 4 s" if rng.random() < 0.04 else "",
        "checks": rng.randrange(64) if role == "verifier" else None,
        "is_convicted": False,
        **fields,
    }


def told_swarm(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    empty: dict[str, Any] = {"coverage": [], "outlook": [], "entrance": [], "trend": []}
    return {"target": "zoo:target", "problem": "", "nodes": nodes, **empty}


def told_machine(*, text: str = "", gib: float = 5.5, layers: str | None = "18:20") -> dict[str, Any]:
    """A machine as sent to the page; `text` replaces all of its texts."""
    return {
        "cores": 8,
        "memory_bytes": int(2 * gib * 2**30),
        "devices": [{"name": text or "NVIDIA GeForce RTX 3060", "memory_bytes": int(gib * 2**30)}],
        "disk_bytes": 212 << 30,
        "lacks": [text] if text else [],
        "reach": {
            "result": "warning",
            "found": text
            or "this machine is behind NAT, as 192.168.1.20: unless its router opens a port by itself (UPnP), "
            "peers reach it through initial peers that relay",
            "fix": text or "Name two `bootstrap` nodes as initial peers.",
        },
        "given_bytes": int(0.85 * gib * 2**30),
        "fits": {
            "layers": layers,
            "bytes": 4 << 30,
            "is_whole": False,
            "whole_bytes": 61 << 30,
            "of": 28,
            "dtype": "bfloat16",
        },
    }


def told_outlook(**fields: Any) -> dict[str, Any]:
    """The expected speed of a chain of two stages."""
    peers = [numbered_identity(number).peer_id for number in (1, 2)]
    stages = [{"peer_id": peer, "layers": "0:14", "pass_s": 0.04} for peer in peers]
    expected = {"tokens_per_s": 8.3, "acceptance": 0.6, "drafted_tokens_per_s": 20.6}
    times = {"way_s": 0.04, "pass_s": 0.12}
    kind = {"target_digest": "ab" * 32, "numerics": "bfloat16"}
    return {**kind, "stages": stages, **times, **expected, "problem": "", **fields}


def crowd(nodes: int, *, turn: int = 0) -> dict[str, Any]:
    """A swarm whose round-trip times change with every turn."""
    return told_swarm(
        [told_node(number, rtt_ms=round(5 + (7 * number + turn) % 180, 1)) for number in range(nodes)]
    )


def hostile_swarm() -> dict[str, Any]:
    """A node for each hostile text, which fills every field that a peer controls."""
    nodes = []
    for number, text in enumerate(HOSTILE.values()):
        said = dict.fromkeys(("model", "target", "numerics", "software", "emulated", "reason", "role"), text)
        lists = {"expertise": [text, text], "addresses": [text]}
        peer_id = text if number % 2 else numbered_identity(number + 1).peer_id
        nodes.append(told_node(number, **said, **lists, peer_id=peer_id))
    coverage = [{"target_digest": text, "numerics": text, "holders": [1, 0, 1]} for text in HOSTILE.values()]
    coverage += [{**kind, "holders": [1, 1, 1]} for kind in coverage]
    stages = [{"peer_id": text, "layers": text, "pass_s": 0.1} for text in HOSTILE.values()]
    outlook = [
        told_outlook(target_digest=kind["target_digest"], numerics=kind["numerics"], stages=stages)
        for kind in coverage
    ]
    entrance = ["--network", *HOSTILE.values()]
    told = {"coverage": coverage[::-1], "outlook": outlook, "entrance": entrance, "problem": HOSTILE["a script"]}
    return told_swarm(nodes) | told


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
