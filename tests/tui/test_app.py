"""The screen with a still feed: keys, prompt, sizes, a lost swarm, the end."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from textual.pilot import Pilot

from cosine_protocol.errors import UsageError
from cosine_tui.app import PANES, MonitorApp
from cosine_tui.help import HelpScreen
from cosine_tui.prompt_line import Options
from cosine_tui.snapshot import RequestState, Snapshot
from cosine_tui.themes import DARK, LIGHT
from cosine_tui.widgets.line_pane import LinePane
from cosine_tui.widgets.pane import Pane
from cosine_tui.widgets.prompt_box import PromptBox, PromptInput
from tests.tui.snapshots import LOST, SNAPSHOT, RecordingFeed, request_of

NARROW, WIDE = (80, 24), (160, 48)

Play = Callable[[MonitorApp, "Pilot[None]", RecordingFeed], Awaitable[None]]


def played(
    play: Play, *, snapshot: Snapshot = SNAPSHOT, size: tuple[int, int] = NARROW
) -> tuple[MonitorApp, RecordingFeed]:
    """The screen after `play`, closed."""
    feed = RecordingFeed(snapshot)
    app = MonitorApp(feed)

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await settle(app, pilot)
            await play(app, pilot, feed)

    asyncio.run(run())
    return app, feed


async def settle(app: MonitorApp, pilot: "Pilot[None]") -> None:
    """Until the latest snapshot is on the screen."""
    app.update_snapshot()
    await pilot.pause()
    await pilot.pause()


def shown_panes(app: MonitorApp) -> list[str]:
    return [name for name in PANES if app.query_one(f"#{name}", Pane).region.area]


def text_in(app: MonitorApp, name: str) -> str:
    return app.query_one(f"#{name}-lines", LinePane).text


def test_a_narrow_screen_shows_one_pane_and_the_number_keys_choose_it() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        assert shown_panes(app) == ["swarm"]
        for key, name in zip("1234", PANES, strict=True):
            await pilot.press(key)
            await pilot.pause()
            assert shown_panes(app) == [name] and text_in(app, name)

    played(play)


def test_a_wide_screen_shows_all_panes_side_by_side() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        assert shown_panes(app) == list(PANES)
        assert all(text_in(app, name) for name in PANES)
        await pilot.press("3")
        assert app.focused is app.query_one("#request-lines")
        await pilot.press("tab")
        assert app.focused is not app.query_one("#request-lines")

    played(play, size=WIDE)


def test_a_large_swarm_leaves_room_for_the_other_panes_and_can_be_scrolled() -> None:
    nodes = tuple(replace(SNAPSHOT.nodes[2], peer_id=f"peer-{number:04}") for number in range(100))
    events = SNAPSHOT.events * 20

    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        assert all(app.query_one(f"#{name}", Pane).region.height >= 9 for name in PANES)
        swarm = app.query_one("#swarm-lines", LinePane)
        assert swarm.max_scroll_y > 50 and app.query_one("#events-lines", LinePane).max_scroll_y > 20
        await pilot.press("1", "pagedown", "j")
        await pilot.pause(0.5)
        assert swarm.scroll_y > 5

    played(play, snapshot=replace(SNAPSHOT, nodes=nodes, events=events), size=WIDE)


def test_a_screen_that_changes_its_size_changes_its_layout_and_loses_nothing() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await pilot.resize_terminal(*WIDE)
        await pilot.pause()
        assert shown_panes(app) == list(PANES)
        await pilot.resize_terminal(*NARROW)
        await pilot.pause()
        await pilot.pause()
        assert shown_panes(app) == ["swarm"] and "VERIFIERS 2" in text_in(app, "swarm")

    played(play)


def test_a_prompt_is_sent_with_the_options_typed_before() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await pilot.press("p", "slash", *"temperature", "space", "0", "full_stop", "8", "enter")
        await pilot.press(*"Once", "space", *"upon", "enter")
        await pilot.pause()
        assert feed.asked == [("Once upon", Options(temperature=0.8))]
        assert shown_panes(app) == ["request"] and app.focused is app.query_one("#request-lines")

    played(play)


def test_letters_typed_into_a_prompt_are_not_keys() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await pilot.press("p", "q", "t", "x", "question_mark")
        assert app.query_one(PromptInput).value == "qtx?" and app.theme == DARK
        await pilot.press("escape", "t")
        assert app.theme == LIGHT

    played(play)


def test_a_mistyped_option_is_said_and_stays_to_be_mended() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await pilot.press("slash", *"warm", "enter")
        await pilot.pause()
        assert app.query_one(PromptBox).status.startswith("✗ There is no option /warm")
        assert app.query_one(PromptInput).value == "/warm" and feed.asked == []

    played(play)


def test_earlier_lines_come_back_with_the_arrows() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await pilot.press("p", *"one", "enter", "p", *"two", "enter", "p", "up", "up")
        assert app.query_one(PromptInput).value == "one"
        await pilot.press("down", "down")
        assert app.query_one(PromptInput).value == ""

    played(play)


def test_the_users_own_running_request_can_be_cancelled_and_no_other() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await pilot.press("x")
        assert feed.cancelled == [7]
        await pilot.press("left_square_bracket", "x")
        assert feed.cancelled == [7]

    played(play)


def test_requests_can_be_leafed_through() -> None:
    others = tuple(request_of(number, is_own=False, label="math") for number in (8, 9))
    snapshot = replace(SNAPSHOT, requests=(*SNAPSHOT.requests, *others))

    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        seen = [app.shown_request]
        for key in ("left_square_bracket", "left_square_bracket", "right_square_bracket", "right_curly_bracket"):
            await pilot.press(key)
            seen.append(app.shown_request)
        assert [request.number for request in seen if request] == [7, 6, 6, 7, 7]

    played(play, snapshot=snapshot)


def test_without_an_own_request_the_one_that_writes_is_shown() -> None:
    idle = request_of(8, is_own=False, state=RequestState.ASKING, text=())
    snapshot = replace(SNAPSHOT, requests=(SNAPSHOT.requests[0], request_of(7, is_own=False), idle))

    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        assert app.shown_request is not None and app.shown_request.number == 7

    played(play, snapshot=snapshot)


def test_help_lists_every_key_of_the_footer_and_closes_again() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await pilot.press("question_mark")
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("escape")
        assert not isinstance(app.screen, HelpScreen)

    played(play)


def test_marks_name_the_drafters_in_the_text() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await pilot.press("3", "m")
        await pilot.pause()
        assert "ᵃdef add" in text_in(app, "request")
        await pilot.press("m")
        assert "ᵃdef add" not in text_in(app, "request")

    played(play)


def test_no_color_turns_the_marks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await pilot.press("3")
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


def test_of_several_pictures_between_two_frames_the_latest_is_drawn() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        for number in range(500):
            feed.show(replace(SNAPSHOT, title=f"snapshot {number}"))
        await settle(app, pilot)
        assert "snapshot 499" in app.query_one("#headline", LinePane).text

    played(play)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_quitting_closes_the_feed(key: str) -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await pilot.press(key)

    app, feed = played(play)
    assert feed.is_closed and app.failure is None and app.return_code == 0


def test_control_c_quits_even_while_a_prompt_is_typed() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        await pilot.press("p", "a", "ctrl+c")

    app, feed = played(play)
    assert feed.is_closed and app.return_code == 0


def test_a_source_that_fails_ends_the_screen_with_its_reason() -> None:
    async def play(app: MonitorApp, pilot: "Pilot[None]", feed: RecordingFeed) -> None:
        feed.fail(UsageError("That is no address."))
        await settle(app, pilot)

    app, feed = played(play)
    assert str(app.failure) == "That is no address." and app.return_code == 1 and feed.is_closed
