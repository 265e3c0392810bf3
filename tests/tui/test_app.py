"""The screen with a still feed: typing, keys, sizes, lists and pages, a lost swarm, the end."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from textual import events
from textual.command import CommandList, CommandPalette
from textual.pilot import Pilot
from textual.widgets._toast import ToastRack

from cosine_protocol.errors import UsageError
from cosine_tui.app import MonitorApp
from cosine_tui.looks.themes import DARK, LIGHT
from cosine_tui.state.prompt_line import Options
from cosine_tui.state.snapshot import ConnectionState, Snapshot, SwarmConnection, TextRun
from cosine_tui.state.view import Listing, Order, PaneName
from cosine_tui.widgets.lines import LinePane, ListPane
from cosine_tui.widgets.pane_grid import PaneGrid
from cosine_tui.widgets.prompt_box import PromptBox, PromptInput
from tests.scenes import in_real_time
from tests.thoroughness import quick_first
from tests.tui.snapshots import CODE, LOST, SNAPSHOT, VERIFIER, RecordingFeed, request_of

NARROW, TWO, WIDE = (80, 24), (100, 30), (160, 48)


@dataclass(frozen=True, slots=True)
class Screen:
    """A running monitor, its requests to the feed, and its contents."""

    app: MonitorApp
    pilot: "Pilot[None]"
    feed: RecordingFeed

    async def settle(self) -> None:
        self.app.update_snapshot()
        await self.pilot.pause()
        await self.pilot.pause()

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.settle()

    async def burst(self, *keys: str) -> None:
        """Press keys all at once, and wait until they are handled."""
        for key in keys:
            self.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await self.settle()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for a delayed effect on the screen."""
        while not is_so():
            await self.pilot.pause(0.02)

    @property
    def panes(self) -> list[str]:
        return [name for name in PaneName if self.pane(name).region.area]

    def pane(self, name: str) -> LinePane:
        return self.app.query_one(f"#{name}", LinePane)

    @property
    def line(self) -> str:
        return self.app.query_one(PromptInput).value

    @property
    def notice(self) -> str:
        return self.app.query_one(PromptBox).notice

    @property
    def is_on_prompt(self) -> bool:
        return self.app.focused is self.app.query_one(PromptInput)


class EarlyApp(MonitorApp):
    """A screen that gets keys before its first paint."""

    def __init__(self, feed: RecordingFeed, keys: Sequence[str]) -> None:
        super().__init__(feed)
        self._keys = keys

    def on_load(self) -> None:
        for key in self._keys:
            self.post_message(events.Key(key, key if len(key) == 1 else None))


Play = Callable[..., Awaitable[None]]


@in_real_time
async def played(
    play: Play, *, snapshot: Snapshot = SNAPSHOT, size: tuple[int, int] = NARROW, early: Sequence[str] = ()
) -> Screen:
    """Return the screen after `play`, closed; `early` are keys before its first paint."""
    feed = RecordingFeed(snapshot)
    app = EarlyApp(feed, early)
    async with app.run_test(size=size, notifications=True) as pilot:
        screen = Screen(app, pilot, feed)
        await screen.settle()
        await play(screen)
    return screen


def on_screen(**options: Any) -> Callable[[Play], Callable[..., None]]:
    """Make a played scene a test; `options` are those of `played`."""

    def decorate(play: Play) -> Callable[..., None]:
        def test(**given: Any) -> None:
            played(partial(play, **given), **options)

        signature = inspect.signature(play)
        vars(test)["__signature__"] = signature.replace(parameters=list(signature.parameters.values())[1:])
        return test

    return decorate


# Every printable key that has ever been a command, and others that might be.
BURST = "pquick sort xdmt?[]}1234 jk"


@on_screen(early=[*"/tokens 9", "enter", *"pquick sort", "enter", *"two", "backspace", "enter", *"quit"])
async def test_lines_sent_before_the_first_paint_are_prompts_and_options_in_order(screen: Screen) -> None:
    assert screen.feed.asked == [("pquick sort", Options(max_new_tokens=9)), ("tw", Options(max_new_tokens=9))]
    assert screen.line == "quit"


@on_screen()
async def test_what_is_typed_or_pasted_is_text_for_the_prompt_line_whatever_is_shown(screen: Screen) -> None:
    for key in ("f1", "f4", "ctrl+o"):
        await screen.press(key)
        await screen.burst(*BURST)
        assert screen.line == BURST and screen.is_on_prompt
        screen.app.query_one(PromptInput).value = ""
    assert screen.app.is_running and screen.feed.cancelled == [] and screen.app.theme == DARK
    await screen.press("f2")
    screen.app.post_message(events.Paste("quit\nnow\x1b[2J"))
    await screen.settle()
    assert screen.line == "quit now·[2J"


@on_screen()
async def test_a_narrow_screen_shows_one_pane_and_function_keys_choose_it(screen: Screen) -> None:
    assert screen.panes == ["swarm"] and screen.is_on_prompt
    for key, name in zip(("f2", "f3", "f4", "f5"), PaneName, strict=True):
        await screen.press(key)
        assert screen.panes == [name] and screen.pane(name).text
    await screen.press("f4", "f6")
    assert "ᵃdef add" in screen.pane("request").text, "marks name the drafters"
    await screen.press("f6")
    assert "ᵃdef add" not in screen.pane("request").text


@on_screen(size=WIDE)
async def test_a_wide_screen_shows_all_panes_and_a_medium_one_two(screen: Screen) -> None:
    assert screen.panes == list(PaneName)
    assert all(screen.pane(name).text for name in PaneName)
    await screen.press("f4")
    assert screen.app.focused is screen.pane("request")
    await screen.press("tab")
    assert screen.app.focused is not screen.pane("request")
    await screen.pilot.resize_terminal(160, 24)
    await screen.pilot.pause()
    assert len(screen.panes) == 2, "a low one has room for two"
    await screen.pilot.resize_terminal(*TWO)
    for key, panes in (
        ("f2", ["swarm", "request"]),
        ("f3", ["requests", "request"]),
        ("f4", ["requests", "request"]),
    ):
        await screen.press(key)
        assert screen.panes == panes
    assert (
        screen.app.focused is screen.pane("request") is screen.app.query_one(PaneGrid).shown_pane(screen.app.view)
    )


@on_screen()
async def test_a_prompt_is_sent_with_earlier_options_and_arrows_recall_lines(screen: Screen) -> None:
    await screen.burst(*"/temperature 0.8", "enter")
    assert screen.notice == "temperature is 0.8 from now on."
    await screen.burst(*"--tokens 9 Once upon", "enter", *"again", "enter")
    assert screen.feed.asked == [
        ("Once upon", Options(temperature=0.8, max_new_tokens=9)),
        ("again", Options(temperature=0.8)),
    ]
    assert screen.panes == ["request"] and screen.is_on_prompt
    await screen.burst("up", "up")
    assert screen.line == "--tokens 9 Once upon"
    await screen.press("down", "down")
    assert screen.line == ""
    await screen.burst(*"--top", "tab")
    assert screen.line == "--top-" and screen.notice == "--top-p  --top-k"
    screen.app.query_one(PromptInput).value = ""
    await screen.burst(*"/filter math", "enter", *"/sort load", "enter")
    assert screen.app.view.listing == Listing("math", order=Order.LOAD)


@on_screen()
async def test_an_error_is_wrapped_above_the_line_which_stays_to_be_mended(screen: Screen) -> None:
    line = "/strategy magic-that-nobody-has-thought-of"
    await screen.burst(*line, "enter")
    assert screen.notice.startswith("✗ There is no strategy 'magic-that-nobody-has-thought-of'")
    box, shown = screen.app.query_one(PromptBox), screen.app.query_one("#notice").region
    assert shown.width * shown.height >= len(screen.notice) > shown.width
    assert box.region.bottom == screen.app.size.height - 1
    assert screen.app.query_one(PromptInput).region.y >= shown.bottom
    assert screen.line == line and screen.feed.asked == []
    await screen.press("backspace")
    assert screen.notice == ""
    for number in range(12):
        screen.app.notify(f"a toast of some length, number {number} " * 3, timeout=60)
    await screen.settle()
    rack = screen.app.screen.query_one(ToastRack)
    assert rack.display and rack.children
    assert not any(toast.region.overlaps(box.region) for toast in rack.children)


@pytest.mark.thorough
def test_requests_can_be_leafed_through_and_one_of_the_users_own_cancelled_and_copied() -> None:
    own = request_of(7, text=(TextRun("a\n\x1b]0;owned\x07b", 1), TextRun("\tc", 0)))
    others = tuple(request_of(number, is_own=False, label="math") for number in (8, 9))
    snapshot = replace(SNAPSHOT, requests=(SNAPSHOT.requests[0], own, *others))

    async def play(screen: Screen) -> None:
        await screen.press("ctrl+y")
        assert screen.app.clipboard == "a\n·]0;owned·b\tc", "nothing that steers a terminal"
        assert screen.notice.startswith("The text of request 7")
        await screen.press("ctrl+g")
        assert screen.feed.cancelled == [7]
        seen = [screen.app.shown_request]
        for key in ("f7", "f7", "f8", "f9"):
            await screen.press(key)
            seen.append(screen.app.shown_request)
        await screen.burst(*"/request 9", "enter")
        seen.append(screen.app.shown_request)
        assert [request.number for request in seen if request] == [7, 6, 6, 7, 7, 9]
        await screen.press("ctrl+g")
        assert screen.feed.cancelled == [7] and "Only your own running requests" in screen.notice
        await screen.burst(*"/request 99", "enter")
        assert screen.notice == "✗ There is no request '99' here; there are 6, 7, 8, 9."

    played(play, snapshot=snapshot)


@on_screen()
async def test_nodes_and_requests_are_selected_and_opened_by_keys_or_clicks_and_left(screen: Screen) -> None:
    await screen.press("f2", "down", "down", "down", "enter")
    page = screen.pane("page").text
    assert CODE in page and "42 % of 100 tokens" in page and screen.panes == []
    await screen.press("ctrl+y")
    assert screen.app.clipboard == CODE
    await screen.press("escape")
    assert screen.panes == ["swarm"] and screen.is_on_prompt
    swarm = screen.app.query_one("#swarm", ListPane)
    await screen.pilot.click(swarm, offset=(3, 2))
    assert swarm.selected == VERIFIER
    await screen.pilot.click(swarm, offset=(3, 4))
    assert swarm.selected == VERIFIER
    await screen.pilot.click(swarm, offset=(3, 2))
    await screen.settle()
    assert VERIFIER in screen.pane("page").text
    await screen.press("escape", "f3", "down")
    assert screen.app.shown_request is not None and screen.app.shown_request.number == 6
    await screen.press("enter")
    page = screen.pane("page").text
    assert "TIMELINE" in page and "ACCOUNTS" in page
    assert screen.pane("page").title == "Request 6 · math  (PgDn scrolls, Esc closes)"


@pytest.mark.thorough
def test_the_palette_has_the_monitors_own_commands_and_reads_no_markup_in_a_stranger_s_name() -> None:
    some = SNAPSHOT.nodes[2]
    domains = ["[/]x", "[@click=screen.app.quit]x", "[$accent]x"]
    evil = tuple(replace(some, record=replace(some.record, expertise=(domain,))) for domain in domains)

    async def play(screen: Screen) -> None:
        names = [command.title for command in screen.app.get_system_commands(screen.app.screen)]
        assert {"Help (F1)", "Copy (Ctrl+Y)", "Sort by load", "Request 7 · yours · code"} <= set(names)
        await screen.press("ctrl+p", *"Node")
        found = screen.app.screen.query_one(CommandList)
        await screen.until(lambda: found.option_count == len(domains))
        shown = " ".join(str(found.get_option_at_index(index).prompt) for index in range(len(domains)))
        assert all(domain.replace("[", "(").replace("]", ")") in shown for domain in domains)
        await screen.press(*["backspace"] * 4, *"Theme")
        assert isinstance(screen.app.screen, CommandPalette)
        await screen.until(lambda: found.option_count == 1)
        await screen.press("enter")
        await screen.until(lambda: screen.app.theme == LIGHT)
        assert screen.line == "" and not isinstance(screen.app.screen, CommandPalette)

    played(play, snapshot=replace(SNAPSHOT, nodes=evil))


def test_a_lost_swarm_stays_in_sight_and_without_colour_marks_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    reason = " ".join(f"reason{number}" for number in range(20))
    long = SwarmConnection(state=ConnectionState.LOST, since_s=55.0, reason=reason)

    async def play(screen: Screen) -> None:
        swarm, head = screen.app.query_one("#swarm", ListPane), screen.pane("headline")
        screen.feed.show(LOST)
        await screen.settle()
        assert "✗ swarm lost, next try in 4 s: the DHT did not answer" in head.text
        assert swarm.is_stale and "VERIFIERS 2" in swarm.text
        assert screen.pane("swarm").title == "Swarm  (last seen)"
        screen.feed.show(replace(SNAPSHOT, connection=long))
        await screen.settle()
        await screen.settle()
        assert "reason19" in head.text and head.region.height == len(head.text.split("\n")), "wrapped, not cut"
        screen.feed.show(SNAPSHOT)
        await screen.settle()
        assert not swarm.is_stale
        await screen.press("f4")
        assert "ᵃdef add" in screen.pane("request").text

    played(play)


@pytest.mark.parametrize("keys", quick_first([["ctrl+q"], [*"/quit", "enter"], ["ctrl+c"]]))
def test_while_a_request_of_the_users_own_goes_on_quitting_asks_once(keys: list[str]) -> None:
    async def play(screen: Screen) -> None:
        await screen.burst(*keys)
        assert screen.app.return_code is None
        assert screen.notice.startswith("1 request of yours still goes on; quit once more")
        await screen.press("escape")
        await screen.burst(*keys)
        assert screen.app.return_code is None and "quit once more" in screen.notice
        await screen.burst(*keys)

    screen = played(play)
    assert screen.app.return_code == 0 and screen.feed.is_closed


def test_a_source_that_fails_ends_the_screen_with_its_reason() -> None:
    async def play(screen: Screen) -> None:
        screen.feed.fail(UsageError("That is no address."))
        await screen.settle()

    screen = played(play)
    assert (str(screen.app.failure), screen.app.return_code) == ("That is no address.", 1)
    assert screen.feed.is_closed


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

    async def play(screen: Screen) -> None:
        for key in ("f2", "f3", "f4", "f5", "ctrl+o", "f2", "down", "down", "down", "enter"):
            await screen.press(key)
            strips = screen.app.screen._compositor.render_strips()
            shown = "".join(segment.text for strip in strips for segment in strip)
            assert "evil" in shown or key == "down"
            assert not set("\x1b\x07\x9b\u202e") & set(shown)
        names = [command.title for command in screen.app.get_system_commands(screen.app.screen)]
        assert not set("\x1b\x07\x9b\u202e") & set("".join(names))

    played(play, snapshot=snapshot, size=(100, 40))
