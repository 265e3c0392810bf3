"""The contents of the panes: all important facts on 78 cells, and every state in a word or a sign."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, Group, RenderableType
from rich.segment import Segment

from cosine_protocol.records import Role, StageOffer
from cosine_tui.looks.themes import DARK, THEMES
from cosine_tui.panes.headline import headline
from cosine_tui.panes.help import TYPING, help_page
from cosine_tui.panes.node import node_page
from cosine_tui.panes.request import request_page, request_pane
from cosine_tui.panes.requests import request_rows
from cosine_tui.panes.swarm import MAX_BANS_SHOWN, MAX_ROWS, swarm_rows
from cosine_tui.state.prompt_line import COMMANDS, OPTIONS
from cosine_tui.state.snapshot import ConnectionState, EventKind, RequestState, Snapshot, SwarmConnection
from cosine_tui.state.view import ALL, Listing
from tests.cosine_p2p.samples import TARGET
from tests.tui.snapshots import (
    BANNED,
    LOST,
    LOST_REASON,
    SNAPSHOT,
    SPARE,
    VERIFIER,
    account_of,
    drafter_of,
    peer_id_of,
    request_of,
)

NARROW, HALF = 78, 48


def drawn(content: RenderableType, width: int = NARROW) -> list[list[Segment]]:
    console = Console(width=width, theme=THEMES[DARK][1], color_system="truecolor")
    return console.render_lines(content, pad=False)


def text_of(content: RenderableType, width: int = NARROW) -> str:
    return "\n".join("".join(segment.text for segment in line).rstrip() for line in drawn(content, width))


def swarm(snapshot: Snapshot, width: int = NARROW, listing: Listing = ALL) -> str:
    return "\n".join(row.line.plain for row in swarm_rows(snapshot, width, listing))


def requests(snapshot: Snapshot, width: int = NARROW, listing: Listing = ALL) -> str:
    return "\n".join(row.line.plain for row in request_rows(snapshot, width, listing))


def pane(width: int = NARROW, **changes: Any) -> Group:
    above, below = request_pane(SNAPSHOT, request_of(**changes), width)
    return Group(above) if below is None else Group(above, below)


def row_of(text: str, part: str) -> str:
    return next(line for line in text.split("\n") if part in line)


def with_node(index: int, **changes: Any) -> Snapshot:
    nodes = list(SNAPSHOT.nodes)
    nodes[index] = replace(nodes[index], **changes)
    return replace(SNAPSHOT, nodes=tuple(nodes))


LONG_REASON = " ".join(f"word{number}" for number in range(40))


@given(st.integers(min_value=30, max_value=220))
def test_nothing_of_a_list_sticks_out_at_any_width(width: int) -> None:
    for rows in (swarm_rows(BANNED, width), request_rows(SNAPSHOT, width)):
        assert max(row.line.cell_len for row in rows) <= width


@pytest.mark.parametrize("width", [46, 78, 158])
def test_help_names_everything_and_nothing_is_cut(width: int) -> None:
    text = text_of(help_page(), width)
    words = " ".join(text.split())
    assert text.count("…") == 1  # it is the sign of a state
    assert all(command.usage in text and command.key_label in text for command in COMMANDS)
    assert all(f"--{name} " in text for name in OPTIONS)
    assert all(f"{state.sign} {state.word}" in words for state in (*RequestState, *EventKind))
    if width > 100:
        assert all(command.what in text for command in COMMANDS) and all(what in text for _, what in TYPING)


@pytest.mark.parametrize(
    ("shown", "parts"),
    [
        (text_of(headline(LOST, NARROW)), ["✗ lost 7 s", "swarm lost, next try in 4 s: the DHT did not answer"]),
        (
            text_of(headline(replace(SNAPSHOT, problem="half is silent"), NARROW)),
            ["! the list may be incomplete: half is silent"],
        ),
        (row_of(swarm(SNAPSHOT), SPARE[-6:]), ["✗ lost", f"unreachable for 12 s: {LOST_REASON}"]),
        (row_of(swarm(SNAPSHOT, HALF), VERIFIER[-6:]), ["62 ms", "2/16"]),
        (swarm(SNAPSHOT, listing=Listing("code")), ["VERIFIERS 0 of 2", "DRAFTERS 1 of 2"]),
        (requests(replace(SNAPSHOT, requests=())), ["type a prompt and press Enter"]),
        (
            " ".join(text_of(pane(HALF)).split()),
            ["17.3 tokens/s 12 tokens 6 passes 2.5 s so far 0.31 s to the first"],
        ),
        (text_of(pane(state=RequestState.FAILED, error="No verifier is left.")), ["✗ No verifier is left."]),
        (text_of(pane(state=RequestState.FINISHED, account=account_of())), ["✓ finished at its end"]),
        (text_of(node_page(SNAPSHOT, "nobody")), ["no longer announced"]),
        (
            text_of(request_page(SNAPSHOT, 7, NARROW, has_marks=True)),
            ["ᵃdef add", "follow when the request is over"],
        ),
        (
            text_of(node_page(with_node(1, reason=LONG_REASON), SPARE), HALF),
            ["✗ unreachable for 12 s", "word39"],
        ),
        (
            text_of(node_page(replace(SNAPSHOT, began_unix_s=58.0), VERIFIER)),
            ["announced         2 min 00 s ago, for 5 min 00 s"],
        ),
    ],
)
def test_what_matters_is_said(shown: str, parts: list[str]) -> None:
    assert [part for part in parts if part in shown] == parts


def test_who_is_banned_stands_below_the_nodes_with_how_long_and_why() -> None:
    lines = swarm(BANNED).split("\n")
    at = lines.index("BANNED HERE 1")
    assert lines[at + 1] == f"✗ {SPARE[-6:]} for 59 min 58 s yet: it flooded this node each time it came back"
    many = replace(BANNED, bans=BANNED.bans * 9)
    assert swarm(many).count("✗ ") == MAX_BANS_SHOWN + 1
    assert "`cosine-node ban` shows all" in swarm(many)


def test_a_swarm_of_thousands_is_cut_and_counted() -> None:
    nodes = tuple(drafter_of(peer_id_of(9), "code", 1) for _ in range(MAX_ROWS + 1234))
    text = swarm(replace(SNAPSHOT, nodes=nodes))
    assert "DRAFTERS 1,734" in text and "and 1,234 more; /filter finds them" in text
    assert "no verifier is announced" in text


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (ConnectionState.JOINING, "Joining the network"),
        (ConnectionState.LIVE, f"No node of {TARGET}"),
        (ConnectionState.LOST, "The network could not be joined yet. no answer no answer"),
    ],
)
def test_an_empty_swarm_says_why_it_is_empty(state: ConnectionState, said: str) -> None:
    snapshot = Snapshot(target=TARGET, connection=SwarmConnection(state=state, reason="no answer " * 20))
    assert said in swarm(snapshot)


def test_stages_have_their_layers_and_the_share_of_time_they_are_busy() -> None:
    offer = StageOffer(
        first_layer=8,
        end_layer=16,
        layers=24,
        wide_tokens=64,
        wide_pass_us=31_000,
        busy_permille=700,
        pool_tokens=4096,
    )
    known = SNAPSHOT.nodes[0]
    stage = replace(known, record=replace(known.record, peer_id=peer_id_of(77), role=Role.STAGE, stage=offer))
    snapshot = replace(SNAPSHOT, nodes=(*SNAPSHOT.nodes, stage))
    lines = swarm(snapshot, 100).splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("STAGES 1"))
    assert "busy" in lines[at] and "8:16" in lines[at + 1] and "70%" in lines[at + 1].replace(" ", "")
    assert "STAGES" not in swarm(SNAPSHOT, 100)
    details = text_of(node_page(snapshot, stage.peer_id))
    for part in ("8:16 of 24", "of the time", "4,096 tokens for a new chain", "for 64 tokens"):
        assert part in details
