"""The screen with a still feed: typing, keys, sizes, lists and pages, a lost swarm, the end."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest
from textual import events
from textual.command import CommandList, CommandPalette
from textual.pilot import Pilot
from textual.widgets._toast import ToastRack

from cosine_protocol.errors import UsageError
from cosine_tui.app import MonitorApp
from cosine_tui.commands import COMMANDS
from cosine_tui.prompt_line import Options
from cosine_tui.snapshot import ConnectionState, Snapshot, SwarmConnection, TextRun
from cosine_tui.themes import DARK, LIGHT
from cosine_tui.view import PaneName
from cosine_tui.widgets.line_pane import LinePane
from cosine_tui.widgets.list_pane import ListPane
from cosine_tui.widgets.pane import Pane
from cosine_tui.widgets.pane_grid import PaneGrid
from cosine_tui.widgets.prompt_box import PromptBox, PromptInput
from tests.thoroughness import quick_first
from tests.tui.snapshots import CODE, LOST, SNAPSHOT, VERIFIER, RecordingFeed, request_of

NARROW, TWO, WIDE = (80, 24), (100, 30), (160, 48)

Play = Callable[[MonitorApp, "Pilot[None]", RecordingFeed], Awaitable[None]]


def played(
    play: Play, *, snapshot: Snapshot = SNAPSHOT, size: tuple[int, int] = NARROW
) -> tuple[MonitorApp, RecordingFeed]:
    """The screen after `play`, closed."""
    feed = RecordingFeed(snapshot)
    app = MonitorApp(feed)

    async def run() -> None:
        async with app.run_test(size=size, notifications=True) as pilot:
            await settle(app, pilot)
            await play(app, pilot, feed)

    asyncio.run(run())
    return app, feed


async def burst(app: MonitorApp, pilot: "Pilot[None]", *keys: str) -> None:
    """Press keys all at once, and wait until they are dealt with."""
    for key in keys:
        app.post_message(events.Key(key, key if len(key) == 1 else None))
    await settle(app, pilot)


async def until(pilot: "Pilot[None]", is_so: Callable[[], bool]) -> None:
    """Wait for what the screen does in its own time."""
    while not is_so():
        await pilot.pause(0.02)


async def settle(app: MonitorApp, pilot: "Pilot[None]") -> None:
    """Until the latest snapshot is on the screen."""
    app.update_snapshot()
    await pilot.pause()
    await pilot.pause()


def shown_panes(app: MonitorApp) -> list[str]:
    return [name for name in PaneName if app.query_one(f"#{name}", Pane).region.area]


def text_in(app: MonitorApp, name: str) -> str:
    return app.query_one(f"#{name}-lines", LinePane).text


def line(app: MonitorApp) -> str:
    """What stands on the prompt line."""
    return app.query_one(PromptInput).value


def notice(app: MonitorApp) -> str:
    return app.query_one(PromptBox).notice


class EarlyApp(MonitorApp):
    """A screen that is typed to before there is anything on it."""

    def __init__(self, feed: RecordingFeed, keys: Sequence[str]) -> None:
        super().__init__(feed)
        self._keys = keys

    def on_load(self) -> None:
        for key in self._keys:
            self.post_message(events.Key(key, key if len(key) == 1 else None))


# Every printable key that has ever been a command, and others that one could be made of.
BURST = "pquick sort xdmt?[]}1234 jk"


def typed_early(keys: Sequence[str]) -> tuple[MonitorApp, RecordingFeed, str]:
    """The screen, its feed and its prompt line after keys that came before it was mounted."""
    feed = RecordingFeed(SNAPSHOT)
    app = EarlyApp(feed, keys)
    lines: list[str] = []

    async def run() -> None:
        async with app.run_test(size=NARROW) as pilot:
            await settle(app, pilot)
            lines.append(line(app))

    asyncio.run(run())
    return app, feed, lines[0]


def test_what_is_typed_before_the_first_paint_is_text() -> None:
    app, feed, typed = typed_early(BURST)
    assert typed == BURST and feed.cancelled == [] and app.return_code is None


def test_lines_sent_before_the_first_paint_are_prompts_and_options_in_order() -> None:
    keys = [*"/tokens 9", "enter", *"pquick sort", "enter", *"two", "backspace", "enter", *"quit"]
    _, feed, typed = typed_early(keys)
    assert feed.asked == [("pquick sort", Options(max_new_tokens=9)), ("tw", Options(max_new_tokens=9))]
    assert typed == "quit"


@pytest.mark.parametrize("key", quick_first(["f2", "f1", "f3", "f4", "f5", "ctrl+o"]))
def test_typing_goes_to_the_prompt_line_whatever_is_shown(key: str) -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await pilot.press(key)
        await burst(app, pilot, *BURST)
        assert line(app) == BURST and app.focused is app.query_one(PromptInput)
        assert app.is_running and feed.cancelled == [] and app.theme == DARK

    played(play)


def test_what_is_pasted_is_one_line_without_what_steers_a_terminal() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await pilot.press("f2")
        app.post_message(events.Paste("quit\nnow\x1b[2J"))
        await settle(app, pilot)
        assert line(app) == "quit now·[2J"

    played(play)


def test_no_command_has_a_key_that_prints() -> None:
    assert all(not command.key or len(command.key) > 1 for command in COMMANDS)
    for widget in (MonitorApp, PromptInput, ListPane, LinePane):
        keys = [key for binding in widget.BINDINGS for key in binding.key.split(",")]  # type: ignore[union-attr]
        assert all(len(key) > 1 for key in keys)
        assert not {"slash", "question_mark", "left_square_bracket"} & set(keys)


def test_a_narrow_screen_shows_one_pane_and_function_keys_choose_it() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        assert shown_panes(app) == ["swarm"] and app.focused is app.query_one(PromptInput)
        for key, name in zip(("f2", "f3", "f4", "f5"), PaneName, strict=True):
            await pilot.press(key)
            await pilot.pause()
            assert shown_panes(app) == [name] and text_in(app, name)

    played(play)


@pytest.mark.thorough
def test_from_100_columns_on_the_request_stands_beside_another_pane() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        assert shown_panes(app) == ["swarm", "request"]
        await pilot.press("f3")
        await pilot.pause()
        assert shown_panes(app) == ["requests", "request"]
        await pilot.press("f4")
        await pilot.pause()
        assert shown_panes(app) == ["requests", "request"] and app.focused is app.query_one("#request-lines")
        assert app.query_one(PaneGrid).shown_lines(app.view) is app.focused

    played(play, size=TWO)


def test_a_wide_screen_shows_all_panes_and_a_low_one_two() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        assert shown_panes(app) == list(PaneName)
        assert all(text_in(app, name) for name in PaneName)
        await pilot.press("f4")
        assert app.focused is app.query_one("#request-lines")
        await pilot.press("tab")
        assert app.focused is not app.query_one("#request-lines")
        await pilot.resize_terminal(160, 24)
        await pilot.pause()
        assert len(shown_panes(app)) == 2

    played(play, size=WIDE)


@pytest.mark.thorough
def test_a_large_swarm_leaves_room_for_the_other_panes_and_can_be_scrolled() -> None:
    some = SNAPSHOT.nodes[2]
    nodes = tuple(replace(some, record=replace(some.record, peer_id=f"peer-{number:04}")) for number in range(100))
    events_ = SNAPSHOT.events * 20

    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        assert all(app.query_one(f"#{name}", Pane).region.height >= 9 for name in PaneName)
        swarm = app.query_one("#swarm-lines", ListPane)
        assert swarm.max_scroll_y > 50 and app.query_one("#events-lines", LinePane).max_scroll_y > 20
        await pilot.press("f2", *["down"] * 30)
        await pilot.pause()
        assert swarm.scroll_y > 5 and swarm.selected == "peer-0029"

    played(play, snapshot=replace(SNAPSHOT, nodes=nodes, events=events_), size=WIDE)


@pytest.mark.thorough
def test_a_screen_that_changes_its_size_changes_its_layout_and_loses_nothing() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await pilot.resize_terminal(*WIDE)
        await pilot.pause()
        assert shown_panes(app) == list(PaneName)
        await pilot.resize_terminal(*NARROW)
        await pilot.pause()
        await pilot.pause()
        assert shown_panes(app) == ["swarm"] and "VERIFIERS 2" in text_in(app, "swarm")

    played(play)


def test_a_prompt_is_sent_with_the_options_typed_before() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await burst(app, pilot, *"/temperature 0.8", "enter")
        assert notice(app) == "temperature is 0.8 from now on."
        await burst(app, pilot, *"--tokens 9 Once upon", "enter", *"again", "enter")
        await pilot.pause()
        assert feed.asked == [
            ("Once upon", Options(temperature=0.8, max_new_tokens=9)),
            ("again", Options(temperature=0.8)),
        ]
        assert shown_panes(app) == ["request"] and app.focused is app.query_one(PromptInput)

    played(play)


def test_an_error_is_wrapped_above_the_line_which_stays_to_be_mended() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await burst(app, pilot, *"/strategy magic", "enter")
        await pilot.pause()
        assert notice(app).startswith("✗ There is no strategy 'magic'; choose one of cosine, ")
        box, shown = app.query_one(PromptBox), app.query_one("#notice").region
        assert shown.width * shown.height >= len(notice(app)) > shown.width
        assert box.region.bottom == app.size.height - 1 and app.query_one(PromptInput).region.y >= shown.bottom
        assert line(app) == "/strategy magic" and feed.asked == []
        await pilot.press("backspace")
        await pilot.pause()
        assert notice(app) == ""

    played(play)


def test_tab_completes_and_says_what_there_is() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await burst(app, pilot, *"--te", "tab")
        assert line(app) == "--temperature "
        await burst(app, pilot, *"1 --top", "tab")
        await pilot.pause()
        assert line(app) == "--temperature 1 --top-" and notice(app) == "--top-p  --top-k"
        await burst(app, pilot, *"k 4 word", "tab")
        assert app.focused is not app.query_one(PromptInput)

    played(play)


@pytest.mark.thorough
def test_the_right_arrow_takes_the_suggestion() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await burst(app, pilot, *"/ev")
        await pilot.pause()
        await pilot.press("right")
        assert line(app) == "/events"

    played(play)


def test_earlier_lines_come_back_with_the_arrows() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await burst(app, pilot, *"one", "enter", *"two", "enter", "up", "up")
        assert line(app) == "one"
        await pilot.press("down", "down")
        assert line(app) == ""

    played(play)


@pytest.mark.thorough
def test_toasts_and_the_prompt_line_never_meet() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        for number in range(12):
            app.notify(f"a notice of some length, number {number} " * 3, timeout=60)
        await pilot.pause()
        await pilot.pause()
        rack = app.screen.query_one(ToastRack)
        assert rack.display and rack.children
        for toast in rack.children:
            assert not toast.region.overlaps(app.query_one(PromptBox).region)

    for size in (NARROW, WIDE):
        played(play, size=size)


def test_the_users_own_running_request_can_be_cancelled_and_no_other() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await pilot.press("ctrl+g")
        assert feed.cancelled == [7]
        await pilot.press("f7", "ctrl+g")
        assert feed.cancelled == [7] and "Only a request of your own" in notice(app)

    played(play)


def test_requests_can_be_leafed_through() -> None:
    others = tuple(request_of(number, is_own=False, label="math") for number in (8, 9))
    snapshot = replace(SNAPSHOT, requests=(*SNAPSHOT.requests, *others))

    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        seen = [app.shown_request]
        for key in ("f7", "f7", "f8", "f9"):
            await pilot.press(key)
            seen.append(app.shown_request)
        await burst(app, pilot, *"/request 9", "enter")
        await pilot.pause()
        seen.append(app.shown_request)
        assert [request.number for request in seen if request] == [7, 6, 6, 7, 7, 9]
        await burst(app, pilot, *"/request 99", "enter")
        await pilot.pause()
        assert notice(app) == "✗ There is no request '99' here; there are 6, 7, 8, 9."

    played(play, snapshot=snapshot)


def test_a_node_is_selected_and_opened_and_left() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await pilot.press("f2", "down", "down", "down", "enter")
        await pilot.pause()
        await pilot.pause()
        page = text_in(app, "page")
        assert CODE in page and "42 % of 100 tokens" in page and shown_panes(app) == []
        await pilot.press("ctrl+y")
        assert app.clipboard == CODE
        await pilot.press("escape")
        await pilot.pause()
        assert shown_panes(app) == ["swarm"] and app.focused is app.query_one(PromptInput)

    played(play)


def test_a_request_is_selected_and_opened() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await pilot.press("f3", "down")
        await pilot.pause()
        assert app.shown_request is not None and app.shown_request.number == 6
        await pilot.press("enter")
        await pilot.pause()
        await pilot.pause()
        page = text_in(app, "page")
        assert "TIMELINE" in page and "ACCOUNTS" in page
        assert app.query_one("#page", Pane).stated_title == "Request 6 · math  (PgDn scrolls, Esc closes)"

    played(play)


@pytest.mark.thorough
def test_a_click_selects_a_row_and_a_second_one_opens_it() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        swarm = app.query_one("#swarm-lines", ListPane)
        await pilot.click(swarm, offset=(3, 1))
        assert swarm.selected == VERIFIER
        await pilot.click(swarm, offset=(3, 3))
        assert swarm.selected == VERIFIER
        await pilot.click(swarm, offset=(3, 1))
        await pilot.pause()
        await pilot.pause()
        assert VERIFIER in text_in(app, "page")

    played(play)


def test_lists_are_filtered_and_sorted() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await burst(app, pilot, *"/filter math", "enter")
        await pilot.pause()
        text = text_in(app, "swarm")
        assert "VERIFIERS 0 of 2" in text and "DRAFTERS 1 of 2" in text and CODE[-6:] not in text
        assert app.query_one("#swarm", Pane).stated_title == "Swarm  (only 'math')"
        await burst(app, pilot, *"/filter", "enter", *"/sort load", "enter")
        await pilot.pause()
        text = text_in(app, "swarm")
        assert text.index(" b math") < text.index(" a code")
        await pilot.press("ctrl+s")
        assert app.view.listing.order == "rtt"
        await burst(app, pilot, *"/sort height", "enter")
        await pilot.pause()
        assert "cannot be sorted by 'height'" in notice(app)

    played(play)


def test_help_is_a_page_with_every_command_and_typing_goes_on() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await burst(app, pilot, *"/help", "enter")
        await pilot.pause()
        await pilot.pause()
        assert all(command.usage in text_in(app, "page") for command in COMMANDS)
        page = app.query_one("#page-lines", LinePane)
        await pilot.press("pagedown")
        await until(pilot, lambda: page.scroll_y > 0)
        await pilot.press("q")
        assert line(app) == "q"
        await pilot.press("f1")
        await pilot.pause()
        assert shown_panes(app) == ["swarm"]

    played(play)


@pytest.mark.thorough
def test_the_palette_has_the_monitors_own_commands() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        names = [command.title for command in app.get_system_commands(app.screen)]
        assert {"Help (F1)", "Copy (Ctrl+Y)", "Sort by load", f"Node code drafter {CODE[-6:]}"} <= set(names)
        assert "Request 7 · yours · code" in names
        await pilot.press("ctrl+p")
        await pilot.pause()
        assert isinstance(app.screen, CommandPalette)
        await pilot.press(*"Theme")
        found = app.screen.query_one(CommandList)
        await until(pilot, lambda: found.option_count == 1)
        await pilot.press("enter")
        await until(pilot, lambda: app.theme == LIGHT)
        assert line(app) == "" and not isinstance(app.screen, CommandPalette)

    played(play)


@pytest.mark.parametrize("domain", quick_first(["[/]x", "[@click=app.quit]x", "[$accent]x"]))
def test_a_stranger_s_name_is_no_markup_in_the_palette(domain: str) -> None:
    some = SNAPSHOT.nodes[2]
    evil = replace(some, record=replace(some.record, expertise=(domain,)))

    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await pilot.press("ctrl+p")
        await pilot.press(*"Node")
        found = app.screen.query_one(CommandList)
        await until(pilot, lambda: found.option_count == 1)
        assert domain.replace("[", "(").replace("]", ")") in str(found.get_option_at_index(0).prompt)

    played(play, snapshot=replace(SNAPSHOT, nodes=(evil,)))


def test_the_text_of_a_request_is_copied_without_what_steers_a_terminal() -> None:
    request = request_of(7, text=(TextRun("a\n\x1b]0;owned\x07b", 1), TextRun("\tc", 0)))

    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await pilot.press("ctrl+y")
        assert app.clipboard == "a\n·]0;owned·b\tc" and notice(app).startswith("The text of request 7")

    played(play, snapshot=replace(SNAPSHOT, requests=(request,)))


@pytest.mark.thorough
def test_marks_name_the_drafters_in_the_text() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await pilot.press("f4", "f6")
        await pilot.pause()
        assert "ᵃdef add" in text_in(app, "request")
        await pilot.press("f6")
        assert "ᵃdef add" not in text_in(app, "request")

    played(play)


@pytest.mark.thorough
def test_no_color_turns_the_marks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await pilot.press("f4")
        await pilot.pause()
        assert "ᵃdef add" in text_in(app, "request")

    played(play)


def test_a_lost_swarm_stays_in_sight_greyed_and_said_in_words() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        feed.show(LOST)
        await settle(app, pilot)
        assert "✗ swarm lost, next try in 4 s: the DHT did not answer" in app.query_one("#headline", LinePane).text
        swarm = app.query_one("#swarm-lines", LinePane)
        assert swarm.is_stale and "VERIFIERS 2" in swarm.text
        assert app.query_one("#swarm", Pane).stated_title == "Swarm  (last seen)"
        feed.show(SNAPSHOT)
        await settle(app, pilot)
        assert not swarm.is_stale

    played(play)


@pytest.mark.thorough
def test_a_long_reason_of_a_lost_swarm_is_wrapped_not_cut() -> None:
    reason = " ".join(f"reason{number}" for number in range(20))
    connection = SwarmConnection(state=ConnectionState.LOST, since_s=55.0, reason=reason)

    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await settle(app, pilot)
        headline = app.query_one("#headline", LinePane)
        assert "reason19" in headline.text and headline.region.height == len(headline.text.split("\n"))

    played(play, snapshot=replace(SNAPSHOT, connection=connection))


def test_of_several_pictures_between_two_frames_the_latest_is_drawn() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        for number in range(500):
            feed.show(replace(SNAPSHOT, title=f"snapshot {number}"))
        await settle(app, pilot)
        assert "snapshot 499" in app.query_one("#headline", LinePane).text

    played(play)


IDLE = replace(SNAPSHOT, requests=SNAPSHOT.requests[:1])


@pytest.mark.parametrize("keys", quick_first([["ctrl+q"], ["ctrl+c"], ["a", "ctrl+c"], [*"/quit", "enter"]]))
def test_quitting_closes_the_feed(keys: list[str]) -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await burst(app, pilot, *keys)

    app, feed = played(play, snapshot=IDLE)
    assert feed.is_closed and app.failure is None and app.return_code == 0


@pytest.mark.parametrize("keys", quick_first([["ctrl+q"], [*"/quit", "enter"], ["ctrl+c"]]))
def test_while_a_request_of_the_users_own_goes_on_quitting_asks_once(keys: list[str]) -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await burst(app, pilot, *keys)
        await pilot.pause()
        assert app.return_code is None and notice(app).startswith(
            "1 request of yours still goes on; quit once more"
        )
        await pilot.press("escape")
        await burst(app, pilot, *keys)
        await pilot.pause()
        assert app.return_code is None and "quit once more" in notice(app)
        await burst(app, pilot, *keys)

    app, feed = played(play)
    assert app.return_code == 0 and feed.is_closed


def test_a_prompt_just_sent_counts_before_it_is_in_a_snapshot() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await burst(app, pilot, *"Once", "enter")
        await pilot.pause()
        await pilot.press("ctrl+q")
        assert app.return_code is None
        await pilot.press("ctrl+q")

    app, _ = played(play, snapshot=IDLE)
    assert app.return_code == 0


def test_a_source_that_fails_ends_the_screen_with_its_reason() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        feed.fail(UsageError("That is no address."))
        await settle(app, pilot)

    app, feed = played(play)
    assert str(app.failure) == "That is no address." and app.return_code == 1 and feed.is_closed


HOSTILE = "\x1b]0;owned\x07\x9b2J\u202eevil"


def test_nothing_of_a_stranger_reaches_the_terminal_with_control_characters() -> None:
    some = SNAPSHOT.nodes[2]
    record = replace(some.record, model=HOSTILE, expertise=(HOSTILE,), software=HOSTILE, addresses=(HOSTILE,))
    lost = replace(SNAPSHOT.nodes[1], reason=HOSTILE)
    event = replace(SNAPSHOT.events[0], text=HOSTILE)
    request = request_of(7, label=HOSTILE, error=HOSTILE, why=(HOSTILE,), text=(TextRun(HOSTILE, 1),))
    snapshot = replace(
        SNAPSHOT,
        title=HOSTILE,
        problem=HOSTILE,
        nodes=(SNAPSHOT.nodes[0], lost, replace(some, record=replace(record, emulated=HOSTILE))),
        requests=(request,),
        events=(event,),
    )

    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        for key in ("f2", "f3", "f4", "f5", "ctrl+o", "f2", "down", "down", "down", "enter"):
            await pilot.press(key)
            await pilot.pause()
            strips = app.screen._compositor.render_strips()
            shown = "".join(segment.text for strip in strips for segment in strip)
            assert "evil" in shown or key == "down"
            assert not set("\x1b\x07\x9b\u202e") & set(shown)
        names = [command.title for command in app.get_system_commands(app.screen)]
        assert not set("\x1b\x07\x9b\u202e") & set("".join(names))

    played(play, snapshot=snapshot, size=(100, 40))
