"""Everything that is known of one node: its record, speed, load, and its reputation here."""

from collections.abc import Iterator
from typing import Final

from cosine_node.learning.home import LearnedName
from cosine_protocol.records import NodeRecord
from cosine_tui import formatting
from cosine_tui.node_events import node_title
from cosine_tui.snapshot import NodeView, Reachability, Snapshot
from cosine_tui.styled_text import BLANK, Line, Span, Tone, author_tone, fit, wrap

_NAME: Final = 16
"""Cells of a fact's name: the longest is `tokenizer digest`."""


def node_detail_lines(snapshot: Snapshot, peer_id: str, width: int) -> list[Line]:
    """The facts about a node on `width` cells, long ones wrapped."""
    node = snapshot.node(peer_id)
    if node is None:
        return wrap([Span(f"{peer_id} is no longer announced in this network.", Tone.WARNING)], width)
    is_up = node.reachability is Reachability.UP
    since = formatting.duration(snapshot.at_s - node.since_s)
    stated = f"● up for {since}" if is_up else f"✗ unreachable for {since}: {node.reason}"
    lines = [
        *wrap([Span(node_title(node), author_tone(node.author) if node.author else Tone.STRONG)], width),
        *wrap([Span(stated, Tone.GOOD if is_up else Tone.BAD)], width),
    ]
    for heading, facts in (
        ("SPEED AND LOAD", _speed_and_load(node)),
        *([("LEARNING", learning)] if (learning := tuple(_learning(node))) else []),
        ("REPUTATION HERE", _reputation(snapshot, node)),
        ("RECORD", _record(snapshot, node.record)),
    ):
        lines += [BLANK, (Span(heading, Tone.HEADING),)]
        for name, value in facts:
            lines += fact_lines(name, value, width)
    return lines


def fact_lines(name: str, value: str, width: int) -> list[Line]:
    """A name, and its value wrapped beside it."""
    texts = wrap([Span(value)], max(10, width - _NAME - 2))
    names = [fit(name, _NAME) + "  ", *[" " * (_NAME + 2)] * (len(texts) - 1)]
    return [(Span(shown, Tone.MUTED), *text) for shown, text in zip(names, texts, strict=True)]


def _speed_and_load(node: NodeView) -> Iterator[tuple[str, str]]:
    record = node.record
    emulated = f", emulated: profile {record.emulated}" if record.emulated else ""
    yield "a pass", f"{formatting.milliseconds(node.pass_ms)} for one token, as announced{emulated}"
    rate = formatting.NONE if node.passes_per_s is None else f"{formatting.per_second(node.passes_per_s)} a second"
    yield "passes now", rate
    if record.stage is not None:
        busy = record.stage.busy_permille / 1000
        wide_ms = formatting.milliseconds(record.stage.wide_pass_us / 1e3)
        yield "wide pass", f"{wide_ms} for {counted_tokens(record.stage.wide_tokens)}, as announced"
        yield "layers", f"{record.stage.held} of {record.stage.layers}"
        yield "busy", f"{formatting.percent(busy)} of the time  {formatting.bar(busy, 10)}"
        yield "room", f"{counted_tokens(record.stage.pool_tokens)} for a new chain"
    share = node.load / node.capacity if node.capacity else 1.0
    full = ", full" if node.load >= node.capacity else ""
    yield "load", f"{node.load} of {counted_requests(node.capacity)}  {formatting.bar(share, 10)}{full}"
    yield "round trip", formatting.milliseconds(node.rtt_ms)
    yield "running for", formatting.NONE if node.uptime_s is None else formatting.duration(node.uptime_s)


def _learning(node: NodeView) -> Iterator[tuple[str, str]]:
    """What this machine knows of a drafter of the user's own; of others their own word, which proves nothing."""
    yield from node.learner
    if node.learner:
        return
    if (learned := LearnedName.of(node.record.model)) is not None:
        yield "serves", f"version {learned.number} ({learned.digest}) of {learned.model}, by its own word"
    elif node.record.learns:
        yield "serves", "the model as it came; learns, by its own word"


def counted_requests(number: int) -> str:
    return formatting.counted(number, "request")


def counted_tokens(number: int) -> str:
    return formatting.counted(number, "token")


def _reputation(snapshot: Snapshot, node: NodeView) -> Iterator[tuple[str, str]]:
    """The part of a node in the requests of this monitor; the swarm keeps no common reputation."""
    standing = node.standing
    had_part = "drafted for" if node.author else "served"
    yield "requests", f"{had_part} {counted_requests(standing.requests)} seen here"
    if node.author:
        hits = standing.accepted / standing.drafted if standing.drafted else None
        drafted = formatting.counted(standing.drafted, "token")
        yield (
            "drafted",
            f"{drafted} in trees, {standing.accepted:,} of them right ({formatting.percent(hits)})",
        )
        share = standing.text_share
        yield (
            "of the text",
            formatting.percent(share)
            if share is None
            else (
                f"{formatting.percent(share)} of {formatting.counted(standing.text_tokens, 'token')}, "
                f"{formatting.bar(share, 10)}"
            ),
        )
        if (earned := node.earned) is not None:
            verifiers = formatting.counted(earned.verifiers, "verifier")
            signers = f"{verifiers} and {formatting.counted(earned.clients, 'client')}"
            yield "receipts", f"{formatting.counted(earned.tokens, 'token')} of others' texts, signed by {signers}"
    yield "failures", f"{standing.failed:,}" if standing.failed else "none"
    for failure in reversed(standing.failures):
        yield formatting.clock(failure.at_s, snapshot.began_unix_s), failure.text


def _record(snapshot: Snapshot, record: NodeRecord) -> Iterator[tuple[str, str]]:
    yield "peer id", record.peer_id
    yield "role", record.role
    yield "expertise", ", ".join(record.expertise) or formatting.NONE
    yield "model", record.model
    yield "numerics", record.numerics
    yield "target", record.target
    yield "target digest", record.target_digest.hex()
    yield "tokenizer digest", record.tokenizer_digest.hex()
    yield "context", formatting.counted(record.context_tokens, "token")
    yield "software", record.software
    for address in record.addresses or (formatting.NONE,):
        yield "address", address
    if snapshot.began_unix_s is not None:
        age_s = snapshot.began_unix_s + snapshot.at_s - record.issued_at_s
        yield "announced", f"{formatting.duration(age_s)} ago, for {formatting.duration(record.lifetime_s)}"
    yield "sequence", f"{record.sequence:,}"
