"""What the panes say: everything that matters on 78 cells, and every state in a word or a sign."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.trust.earned_credit import Earned
from cosine_protocol.records import Role, StageOffer
from cosine_tui.listing import ALL, Listing
from cosine_tui.panes.events import event_lines
from cosine_tui.panes.headline import headline
from cosine_tui.panes.node_details import node_detail_lines
from cosine_tui.panes.request import PLOT_FROM_HEIGHT, RequestPage, request_page, request_title
from cosine_tui.panes.request_details import request_detail_lines
from cosine_tui.panes.requests import request_rows
from cosine_tui.panes.speed_plot import PLAIN_LINE, gain_over_plain, plain_per_s, resampled, speed_plot
from cosine_tui.panes.swarm import MAX_BANS_SHOWN, MAX_ROWS, swarm_rows
from cosine_tui.snapshot import (
    ConnectionState,
    EventKind,
    RequestState,
    Snapshot,
    Speeds,
    SwarmConnection,
    TextRun,
)
from cosine_tui.styled_text import Line, Tone, text_of, width_of
from tests.tui.snapshots import (
    BANNED,
    CODE,
    LEARNER,
    LEARNING,
    LOST,
    LOST_REASON,
    MATH,
    SNAPSHOT,
    SPARE,
    TARGET,
    VERIFIER,
    account_of,
    drafter_of,
    peer_id_of,
    request_of,
)

NARROW, HALF = 78, 48


def swarm_lines(snapshot: Snapshot, width: int, listing: Listing = ALL) -> list[Line]:
    return [row.line for row in swarm_rows(snapshot, width, listing)]


def request_list(snapshot: Snapshot, width: int, listing: Listing = ALL) -> list[Line]:
    return [row.line for row in request_rows(snapshot, width, listing)]


def page(width: int = NARROW, *, has_marks: bool = False, **changes: Any) -> RequestPage:
    return request_page(SNAPSHOT, request_of(**changes), width, has_marks=has_marks)


@given(st.integers(min_value=30, max_value=220))
def test_nothing_sticks_out_at_any_width(width: int) -> None:
    for lines in (
        headline(SNAPSHOT, width),
        headline(LOST, width),
        swarm_lines(BANNED, width),
        request_list(SNAPSHOT, width),
        request_page(SNAPSHOT, SNAPSHOT.requests[1], width).lines,
        request_page(SNAPSHOT, SNAPSHOT.requests[1], width, height=PLOT_FROM_HEIGHT).lines,
        request_detail_lines(SNAPSHOT, 7, width, has_marks=True),
        node_detail_lines(SNAPSHOT, CODE, width),
        node_detail_lines(LEARNING, CODE, width),
        swarm_lines(LEARNING, width),
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


def test_who_is_banned_stands_below_the_nodes_with_how_long_and_why() -> None:
    lines = [text_of([line]) for line in swarm_lines(BANNED, NARROW)]
    at = lines.index("BANNED HERE 1")
    assert lines[at + 1] == f"✗ {SPARE[-6:]} for 59 min 58 s yet: it flooded this node each time it came back"
    many = replace(BANNED, bans=BANNED.bans * 9)
    assert text_of(swarm_lines(many, NARROW)).count("✗ ") == MAX_BANS_SHOWN + 1
    assert "`cosine-node ban` shows all" in text_of(swarm_lines(many, NARROW))


def test_the_page_of_a_drafter_says_what_it_has_receipts_for() -> None:
    earned = Earned(tokens=1234, verifiers=2, clients=1)
    nodes = tuple(replace(node, earned=earned) if node.peer_id == CODE else node for node in SNAPSHOT.nodes)
    lines = text_of(node_detail_lines(replace(SNAPSHOT, nodes=nodes), CODE, NARROW))
    assert "receipts          1,234 tokens of others' texts, signed by 2 verifiers and 1" in lines
    assert "receipts" not in text_of(node_detail_lines(SNAPSHOT, CODE, NARROW))


def test_of_the_user_s_own_drafter_the_page_says_what_it_has_learned_of_others_their_word() -> None:
    own = text_of(node_detail_lines(LEARNING, CODE, NARROW))
    for name, text in LEARNER:
        assert f"{name:<16}  {text[:40]}" in own
    other = text_of(node_detail_lines(LEARNING, MATH, NARROW))
    assert "serves            the model as it came; learns, by its own word" in other
    claimed = replace(LEARNING.nodes[2], learner=())
    text = text_of(node_detail_lines(replace(LEARNING, nodes=(claimed,)), CODE, NARROW))
    assert "serves            version 3 (1a2b3c4d) of zoo:draft-code, by its own word" in text
    assert "LEARNING" not in text_of(node_detail_lines(SNAPSHOT, CODE, NARROW))


def test_the_version_of_a_drafter_that_learns_is_seen_where_its_model_is_cut() -> None:
    row = next(line for line in text_of(swarm_lines(LEARNING, NARROW)).split("\n") if CODE[-6:] in line)
    assert " v3 " in row


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


def test_half_a_screen_still_shows_what_matters_of_a_node() -> None:
    lines = text_of(swarm_lines(SNAPSHOT, HALF)).split("\n")
    verifier = next(line for line in lines if VERIFIER[-6:] in line)
    assert "62 ms" in verifier and "2/16" in verifier and "…" not in verifier
    assert next(line for line in lines if CODE[-6:] in line).endswith("42 %")


def test_a_long_reason_is_wrapped_below_its_node() -> None:
    nodes = (replace(SNAPSHOT.nodes[1], reason=" ".join(f"word{number}" for number in range(12))),)
    for width in (HALF, NARROW):
        rows = swarm_rows(replace(SNAPSHOT, nodes=nodes), width)
        assert "word11" in text_of(row.line for row in rows) and len(rows) > 5
        assert [row.key for row in rows if row.key] == [SPARE]


def test_a_filter_says_how_many_it_leaves() -> None:
    text = text_of(swarm_lines(SNAPSHOT, NARROW, Listing("code")))
    assert "VERIFIERS 0 of 2" in text and "DRAFTERS 1 of 2" in text and "is announced" not in text


def test_a_swarm_of_thousands_is_cut_and_counted() -> None:
    nodes = tuple(drafter_of(peer_id_of(9), "code", 1) for _ in range(MAX_ROWS + 1234))
    text = text_of(swarm_lines(replace(SNAPSHOT, nodes=nodes), NARROW))
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
    assert said in text_of(swarm_lines(snapshot, NARROW))


def test_the_list_names_request_verifier_drafters_and_rates() -> None:
    text = text_of(request_list(SNAPSHOT, NARROW))
    assert f"▶ 7 you code  2 drafters → verifier {VERIFIER[-6:]}" in text and "17.3 tokens/s" in text
    row = next(line for line in text.split("\n") if CODE[-6:] in line)
    assert "━▶" in row and row.rstrip().endswith("7.1 of 61.0 drafts/s")


def test_the_target_s_own_tokens_are_decoded_or_copied() -> None:
    lines = text_of(request_list(SNAPSHOT, NARROW)).split("\n")
    decoded = next(line for line in lines if "target decoded" in line)
    copied = next(line for line in lines if "verifier drafted" in line)
    assert decoded.rstrip().endswith("4.3 tokens/s") and copied.rstrip().endswith("1.5 tokens/s")
    assert copied.startswith("  = ")
    nothing = replace(SNAPSHOT, requests=(request_of(7, copied_per_s=0.0),))
    assert "verifier drafted" not in text_of(request_list(nothing, NARROW))


def test_the_list_has_what_is_over_after_what_goes_on() -> None:
    rows = request_rows(SNAPSHOT, NARROW)
    assert [row.key for row in rows if row.key] == ["7", "6"]
    text = text_of([rows[-1].line])
    assert text.startswith("✓ 6 math") and "Add two numbers." in text and "12 tokens" in text


def test_an_empty_list_says_why() -> None:
    assert "type a prompt and press Enter" in text_of(request_list(replace(SNAPSHOT, requests=()), NARROW))
    assert "/filter alone" in text_of(request_list(SNAPSHOT, HALF, Listing("nothing like it")))


def test_a_request_shows_figures_legend_text_and_reasons() -> None:
    text = text_of(page().lines)
    assert "17.3 tokens/s   12 tokens   6 passes   2.5 s so far   0.31 s to the first" in text
    assert "accepted in each pass  ·▂▃·▁▂  at most 3, 2.0 tokens a pass" in text
    assert f"a code {CODE[-6:]}" in text
    assert re.search(r"target decoded +3 ", text) and re.search(r"= verifier drafted +1 ", text)
    assert "def add(a, b):\n    return a + b" in text
    assert "math        dropped, its guesses were seldom right (weight 1 %)" in text


def test_figures_that_do_not_fit_go_on_below() -> None:
    text = " ".join(text_of(page(HALF).lines).split())
    assert "17.3 tokens/s 12 tokens 6 passes 2.5 s so far 0.31 s to the first" in text


def test_the_speed_is_a_line_on_a_small_pane_and_a_plot_on_a_large_one() -> None:
    small = text_of(page().lines)
    assert re.search(r"speed  ·*▃+▇+█+▆+  1.1 times plain \(16.1\)", small)
    large = text_of(request_page(SNAPSHOT, request_of(), NARROW, height=PLOT_FROM_HEIGHT).lines)
    assert "tokens/s over time, ╌ plain" in large and PLAIN_LINE * 3 in large and "1.1 times plain (16.1)" in large


def test_a_plot_reaches_its_top_at_the_greatest_speed_and_marks_plain_decoding() -> None:
    lines = text_of(speed_plot(Speeds(0.5, (0.0, 5.0, 10.0, 20.0)), 5.0, 46, 4)).split("\n")
    assert [line[:6] for line in lines] == [" 20.0 ", "      ", "  5.0 ", "      ", "      "]
    assert lines[0].endswith("█" * 10) and lines[2][6:16] == PLAIN_LINE * 10 and lines[3][16:26] == "█" * 10
    assert lines[4].startswith("      0 s") and lines[4].endswith("2 s")


def test_a_plot_without_room_or_time_is_none() -> None:
    assert speed_plot(Speeds(), 5.0, 46, 4) == [] == speed_plot(Speeds(1.0, (1.0,)), 5.0, 10, 4)


def test_plain_decoding_is_a_token_a_pass_of_the_verifier() -> None:
    assert plain_per_s(SNAPSHOT, request_of()) == pytest.approx(1000 / 62)
    assert plain_per_s(SNAPSHOT, request_of(verifiers=())) is None
    assert gain_over_plain(SNAPSHOT, request_of(verifiers=())) == ""


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40), st.integers(1, 60))
def test_a_curve_on_other_columns_stays_within_its_bounds(values: list[float], columns: int) -> None:
    shown = resampled(values, columns)
    assert len(shown) == columns and min(values) - 1e-9 <= min(shown) and max(shown) <= max(values) + 1e-9
    assert resampled(values, len(values)) == pytest.approx(values)


def test_tokens_have_the_tone_of_their_author() -> None:
    spans = [span for line in page().lines for span in line]
    assert ("def ", Tone.AUTHOR_1) in spans and ("    return ", Tone.AUTHOR_2) in spans
    assert ("b", Tone.COPIED) in spans
    assert any(span.text.startswith("(a,") and span.tone is Tone.PLAIN for span in spans)


def test_marks_put_letters_before_the_tokens_of_drafters() -> None:
    assert "ᵃdef add(a, ⁼bᵇ):\n    return a + b" in text_of(page(has_marks=True).lines)


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


def test_a_page_of_a_node_tells_its_record_speed_load_and_reputation_here() -> None:
    text = text_of(node_detail_lines(SNAPSHOT, CODE, NARROW))
    assert f"code drafter {CODE[-6:]}" in text and CODE in text and "● up for 1 min 02 s" in text
    assert "5.9 ms for one token, as announced, emulated: profile 60/6@10" in " ".join(text.split())
    assert "2 of 16 requests" in text and "41 ms" in text and "7.5 a second" in text
    assert "drafted for 3 requests seen here" in text and "240 tokens in trees, 42 of them right (18 %)" in text
    assert re.search(r"failures +1\n00:40 +request 5: it was lost: the stream ended", text)
    assert "tiny-code" in text and "4,096 tokens" in text


def test_a_page_of_a_silent_node_says_why_in_full() -> None:
    node = replace(SNAPSHOT.nodes[1], reason=" ".join(f"word{number}" for number in range(40)))
    text = text_of(node_detail_lines(replace(SNAPSHOT, nodes=(node,)), SPARE, HALF))
    assert "✗ unreachable for 12 s" in text and "word39" in text


def test_a_page_of_a_node_that_left_says_so() -> None:
    assert "no longer announced" in text_of(node_detail_lines(SNAPSHOT, "nobody", NARROW))


def test_an_announcement_s_age_is_told_where_the_clock_is_known() -> None:
    text = text_of(node_detail_lines(replace(SNAPSHOT, began_unix_s=58.0), VERIFIER, NARROW))
    assert re.search(r"announced +2 min 00 s ago, for 5 min 00 s", text)


def test_a_page_of_a_request_tells_text_timeline_and_accounts() -> None:
    over = request_of(7, state=RequestState.FINISHED, account=account_of())
    text = text_of(request_detail_lines(replace(SNAPSHOT, requests=(over,)), 7, NARROW, has_marks=False))
    assert "def add(a, b):\n    return a + b" in text and "tokens/s over time" in text
    assert f"   1.20 s  verifier {SPARE[-6:]} was lost: the stream ended" in text
    assert re.search(rf"a code {CODE[-6:]} +120 +5 +4 % +40 ms", text)
    assert re.search(rf"verifier {VERIFIER[-6:]} +committed 12 tokens", text)
    assert "10 tokens of the text in time, 8 of them right (80 %)" in text
    assert "3 tokens decoded, 1 copied" in text and "812 B sent, 64.2 kB received" in text


def test_a_page_of_a_request_that_goes_on_or_is_gone() -> None:
    running = text_of(request_detail_lines(SNAPSHOT, 7, NARROW, has_marks=True))
    assert "ᵃdef add" in running and "follow when the request is over" in running
    assert "no longer kept" in text_of(request_detail_lines(SNAPSHOT, 99, NARROW, has_marks=False))


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
    lines = text_of(swarm_lines(snapshot, 100)).splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("STAGES 1"))
    assert "busy" in lines[at] and "8:16" in lines[at + 1] and "70%" in lines[at + 1].replace(" ", "")
    assert "STAGES" not in text_of(swarm_lines(SNAPSHOT, 100))
    details = text_of(node_detail_lines(snapshot, stage.peer_id, 78))
    for part in ("8:16 of 24", "of the time", "4,096 tokens for a new chain", "for 64 tokens"):
        assert part in details
