"""The page of a node: its speed, load, reputation here and record."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from cosine_p2p.directory.draft_cost import drafts_sentence
from cosine_p2p.transport.reach import is_relayed
from cosine_protocol.records import NodeRecord
from cosine_tui.looks.formatting import NONE, bar, clock, counted, duration, milliseconds, per_second, percent
from cosine_tui.looks.styled_text import Tone, author_tone, beside, toned
from cosine_tui.state.snapshot import NodeView, Snapshot

Facts = Iterator[tuple[str, str]]


def node_page(snapshot: Snapshot, peer_id: str) -> RenderableType:
    node = snapshot.node(peer_id)
    if node is None:
        return toned(f"{peer_id} is no longer announced in this network.", Tone.WARNING)
    since = duration(snapshot.at_s - node.since_s)
    stated = f"● up for {since}" if node.is_up else f"✗ unreachable for {since}: {node.reason}"
    parts: list[RenderableType] = [
        toned(node.title, author_tone(node.author) if node.author else Tone.STRONG),
        toned(stated, Tone.GOOD if node.is_up else Tone.BAD),
    ]
    for heading, facts in (
        ("SPEED AND LOAD", _speed_and_load(node)),
        ("REPUTATION HERE", _reputation(snapshot, node)),
        ("RECORD", _record(snapshot, node.record)),
    ):
        if rows := [(toned(f"{name:<16}", Tone.MUTED), toned(value)) for name, value in facts]:
            parts += [Text(), toned(heading, Tone.HEADING), beside(rows)]
    return Group(*parts)


def _speed_and_load(node: NodeView) -> Facts:
    record = node.record
    emulated = f", emulated: profile {record.emulated}" if record.emulated else ""
    yield "a pass", f"{milliseconds(node.pass_ms)} for one token, as announced{emulated}"
    if drafts := drafts_sentence(record.four_tokens_permille):
        yield "drafts", drafts
    if node.text_tokens:
        accepted = percent((node.accepted or 0) / node.text_tokens)
        yield "accepted", f"{accepted} of {counted(node.text_tokens, 'token')} it drafted for, by its own word"
    yield "passes now", NONE if node.passes_per_s is None else f"{per_second(node.passes_per_s)} a second"
    if (stage := record.stage) is not None:
        busy = stage.busy_permille / 1000
        wide_ms, wide_tokens = milliseconds(stage.wide_pass_us / 1e3), counted(stage.wide_tokens, "token")
        yield "wide pass", f"{wide_ms} for {wide_tokens}, as announced"
        yield "layers", f"{stage.held} of {stage.layers}"
        yield "busy", f"{percent(busy)} of the time  {bar(busy, 10)}"
        yield "room", f"{counted(stage.pool_tokens, 'token')} for a new chain"
    share = node.load / node.capacity if node.capacity else 1.0
    full = ", full" if node.load >= node.capacity else ""
    yield "load", f"{node.load} of {counted(node.capacity, 'request')}  {bar(share, 10)}{full}"
    yield "round trip", milliseconds(node.rtt_ms)
    yield "running for", NONE if node.uptime_s is None else duration(node.uptime_s)


def _reputation(snapshot: Snapshot, node: NodeView) -> Facts:
    """Yield a node's part in the requests of this monitor."""
    tally = node.tally
    had_part = "drafted for" if node.author else "served"
    yield "requests", f"{had_part} {counted(tally.requests, 'request')} seen here"
    if node.author:
        hits = percent(tally.accepted / tally.drafted if tally.drafted else None)
        drafted = counted(tally.drafted, "token")
        yield "drafted", f"{drafted} in trees, {tally.accepted:,} of them right ({hits})"
        share = tally.text_share
        of_text = "" if share is None else f" of {counted(tally.text_tokens, 'token')}, {bar(share, 10)}"
        yield "of the text", percent(share) + of_text
    yield "failures", f"{tally.failed:,}" if tally.failed else "none"
    for failure in reversed(tally.failures):
        yield clock(failure.at_s, snapshot.began_unix_s), failure.text


def _record(snapshot: Snapshot, record: NodeRecord) -> Facts:
    yield "peer id", record.peer_id
    yield "role", record.role
    yield "expertise", ", ".join(record.expertise) or NONE
    yield "model", record.model
    yield "numerics", record.numerics
    yield "target", record.target
    yield "target digest", record.target_digest.hex()
    yield "tokenizer digest", record.tokenizer_digest.hex()
    yield "context", counted(record.context_tokens, "token")
    yield "software", record.software
    yield "way", "relayed" if is_relayed(record.addresses) else "direct"
    for address in record.addresses or (NONE,):
        yield "address", address
    if snapshot.began_unix_s is not None:
        age_s = snapshot.began_unix_s + snapshot.at_s - record.issued_at_s
        yield "announced", f"{duration(age_s)} ago, for {duration(record.lifetime_s)}"
    yield "sequence", f"{record.sequence:,}"
