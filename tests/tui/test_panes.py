"""What the panes say: everything that matters on 78 cells, and every state in a word or a sign."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_tui.panes.events import event_lines
from cosine_tui.panes.flow import flow_lines
from cosine_tui.panes.headline import headline
from cosine_tui.panes.request import RequestPage, request_page, request_title
from cosine_tui.panes.swarm import MAX_ROWS, swarm_lines
from cosine_tui.snapshot import ConnectionState, EventKind, RequestState, Snapshot, SwarmConnection, TextRun
from cosine_tui.styled_text import Tone, text_of, width_of
from tests.tui.snapshots import (
    CODE,
    LOST,
    LOST_REASON,
    SNAPSHOT,
    SPARE,
    TARGET,
    VERIFIER,
    drafter_of,
    peer_id_of,
    request_of,
)

NARROW = 78


def page(width: int = NARROW, *, has_marks: bool = False, **changes: Any) -> RequestPage:
    return request_page(SNAPSHOT, request_of(**changes), width, has_marks=has_marks)


@given(st.integers(min_value=20, max_value=220))
def test_nothing_sticks_out_at_any_width(width: int) -> None:
    for lines in (
        headline(SNAPSHOT, width),
        headline(LOST, width),
        swarm_lines(SNAPSHOT, width),
        flow_lines(SNAPSHOT, width),
        request_page(SNAPSHOT, SNAPSHOT.requests[1], width).lines,
    ):
        assert max(map(width_of, lines)) <= width


def test_the_headline_says_how_the_swarm_stands() -> None:
    text = text_of(headline(SNAPSHOT, NARROW))
    assert "● live 1 min 01 s" in text and "1/2 verifiers  2 drafters  1 request   17.3 tokens/s" in text
    assert TARGET in text


def test_a_lost_swarm_says_so_with_the_reason_and_the_next_try() -> None:
    text = text_of(headline(LOST, NARROW))
    assert "✗ lost 7 s" in text
    assert "✗ swarm lost, next try in 4 s: the DHT did not answer" in text


def test_a_list_that_may_be_incomplete_says_so() -> None:
    text = text_of(headline(replace(SNAPSHOT, problem="half the DHT is silent"), NARROW))
    assert "! the list may be incomplete: half the DHT is silent" in text


def test_a_reachable_node_shows_speed_load_and_distance_on_80_columns() -> None:
    text = text_of(swarm_lines(SNAPSHOT, NARROW))
    row = next(line for line in text.split("\n") if VERIFIER[-6:] in line)
    assert row.startswith("● up") and "bfloat16" in row
    assert [part for part in ("62 ms", "2/16", "41 ms") if part in row] == ["62 ms", "2/16", "41 ms"]


def test_an_unreachable_node_says_since_when_and_why() -> None:
    row = next(line for line in text_of(swarm_lines(SNAPSHOT, NARROW)).split("\n") if SPARE[-6:] in line)
    assert row.startswith("✗ lost") and f"unreachable for 12 s: {LOST_REASON}" in row


def test_a_drafter_shows_its_letter_its_domain_and_its_part_of_the_text() -> None:
    row = next(line for line in text_of(swarm_lines(SNAPSHOT, NARROW)).split("\n") if CODE[-6:] in line)
    assert " a code " in row and row.endswith("42 %") and "██" in row


def test_a_full_node_and_an_emulated_speed_have_signs_of_their_own() -> None:
    text = text_of(swarm_lines(SNAPSHOT, NARROW))
    assert "16/16!" in text and "~5.9 ms" in text and "~ emulated speed, profile 60/6@10" in text


def test_wide_tables_have_more_columns() -> None:
    text = text_of(swarm_lines(SNAPSHOT, 120))
    assert "passes/s" in text and "7.5" in text
    assert "passes/s" not in text_of(swarm_lines(SNAPSHOT, NARROW))


def test_details_name_a_node_in_full() -> None:
    text = text_of(swarm_lines(SNAPSHOT, 120, has_details=True))
    assert f"{CODE}  test, 4,096 tokens of context" in text and CODE not in text_of(swarm_lines(SNAPSHOT, 120))


def test_a_swarm_of_thousands_is_cut_and_counted() -> None:
    nodes = tuple(drafter_of(peer_id_of(9), "code", 1) for _ in range(MAX_ROWS + 1234))
    text = text_of(swarm_lines(replace(SNAPSHOT, nodes=nodes), NARROW))
    assert "DRAFTERS 1,734" in text and "and 1,234 more" in text and "no verifier is announced" in text


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
    assert said in text_of(swarm_lines(snapshot, NARROW))


def test_the_map_names_request_verifier_drafters_and_rates() -> None:
    text = text_of(flow_lines(SNAPSHOT, NARROW))
    assert f"▶ 7 you code  2 drafters → verifier {VERIFIER[-6:]}" in text and "17.3 tokens/s" in text
    row = next(line for line in text.split("\n") if CODE[-6:] in line)
    assert "━▶" in row and row.rstrip().endswith("7.1 of 61.0 drafts/s")
    assert "target itself" in text and "5.8 tokens/s" in text


def test_the_map_leaves_out_what_is_over_and_says_when_nothing_goes_on() -> None:
    assert "6 " not in text_of(flow_lines(SNAPSHOT, NARROW)).split("\n")[0]
    idle = replace(SNAPSHOT, requests=SNAPSHOT.requests[:1])
    assert "press p" in text_of(flow_lines(idle, NARROW))


def test_a_request_shows_figures_legend_text_and_reasons() -> None:
    text = text_of(page().lines)
    assert "17.3 tokens/s   12 tokens   6 passes   2.5 s so far   0.31 s to the first" in text
    assert "accepted in each pass  ·▂▃·▁▂  at most 3, 2.0 tokens a pass" in text
    assert f"a code {CODE[-6:]}" in text and re.search(r"target itself +4 ", text)
    assert "def add(a, b):\n    return a + b" in text
    assert "code        15 tokens deep, 8 nodes a pass" in text


def test_tokens_have_the_tone_of_their_author() -> None:
    spans = [span for line in page().lines for span in line]
    assert ("def ", Tone.AUTHOR_1) in spans and ("    return ", Tone.AUTHOR_2) in spans
    assert any(span.text.startswith("(a,") and span.tone is Tone.PLAIN for span in spans)


def test_marks_put_letters_before_the_tokens_of_drafters() -> None:
    assert "ᵃdef add(a, bᵇ):\n    return a + b" in text_of(page(has_marks=True).lines)


@pytest.mark.parametrize("state", RequestState)
def test_every_state_of_a_request_is_a_sign_and_a_word(state: RequestState) -> None:
    assert f"{state.sign} {state.word}" in text_of(page(state=state).lines)


def test_a_failed_request_shows_its_error_and_a_finished_one_how_it_ended() -> None:
    assert "✗ No verifier is left." in text_of(page(state=RequestState.FAILED, error="No verifier is left.").lines)
    assert "✓ finished at its end" in text_of(page(state=RequestState.FINISHED, finish_reason="eos").lines)


def test_the_end_of_the_text_is_known_while_it_is_written() -> None:
    writing = page()
    assert writing.end is not None and "return a + b" in text_of([writing.lines[writing.end]])
    assert page(state=RequestState.FINISHED).end is None


def test_where_there_is_room_there_are_more_reasons() -> None:
    why = tuple(f"code: reason {number}" for number in range(16))
    few = request_page(SNAPSHOT, request_of(why=why), NARROW)
    many = request_page(SNAPSHOT, request_of(why=why), NARROW, height=60)
    assert text_of(few.lines).count("reason") == 4 and text_of(many.lines).count("reason") == 16


def test_what_strangers_write_cannot_steer_the_terminal() -> None:
    text = text_of(page(text=(TextRun("\x1b]0;owned\x07 text", 0),)).lines)
    assert "\x1b" not in text and "\x07" not in text


def test_titles_of_requests() -> None:
    assert [request_title(request) for request in (None, *SNAPSHOT.requests)] == [
        "Request",
        "Request 6 · math",
        "Request 7 · yours · code",
    ]


def test_events_are_told_the_latest_first_with_a_sign_and_a_word() -> None:
    lines = text_of(event_lines(SNAPSHOT, NARROW)).split("\n")
    assert lines[0].startswith("00:50  ↻ failover    request 6:") and lines[-1].startswith("00:00  + joined")


def test_every_kind_of_event_has_a_word_of_its_own() -> None:
    assert len({kind.word for kind in EventKind}) == len(EventKind)
    assert all(kind.sign and kind.word for kind in EventKind)


def test_a_long_event_is_wrapped_below_itself() -> None:
    lines = text_of(event_lines(SNAPSHOT, 50)).split("\n")
    assert len(lines) > 3 and any(line.startswith(" " * 20) for line in lines)
