"""The demo's screen shows the text of three lanes, and nothing of it steers the terminal."""

import io
from pathlib import Path

from rich.console import Console

from cosine_node.demo.race import Race, Way
from cosine_node.demo.report import EmulatedDevices, PassTiming, RaceReport
from cosine_node.demo.screen import print_report, race_view, save_picture
from cosine_node.passes.emulation import Emulation
from cosine_p2p.request.results import TARGET_SOURCE, Chunk
from tests.node.demo.generations import generation, raced


def shown(race: Race, *, columns: int) -> str:
    console = Console(file=io.StringIO(), width=columns, force_terminal=False)
    console.print(race_view(race, columns=columns))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_three_lanes_stand_side_by_side() -> None:
    race = Race(domain="code", prompt="def add(a, b):", temperature=0.0, max_new_tokens=10)
    for number, way in enumerate(Way):
        race.lanes[way].add(Chunk(f"words{number}", (1, 2), TARGET_SOURCE), {}, seconds=0.25)
    race.lanes[Way.COSINE].done = generation(0.3)
    text = shown(race, columns=100)
    [line] = [line for line in text.splitlines() if "words0" in line]
    assert "words1" in line and "words2" in line
    assert "without drafters" in text
    assert "2 tokens, 0.25 s" in text


def test_a_narrow_terminal_is_enough() -> None:
    race = Race(domain="math", prompt="x" * 500, temperature=0.8, max_new_tokens=10)
    race.lanes[Way.PLAIN].add(Chunk("long " * 100, (1,), TARGET_SOURCE), {}, seconds=1.0)
    assert max(map(len, shown(race, columns=60).splitlines())) <= 60


def test_control_characters_are_not_passed_on() -> None:
    race = Race(domain="code", prompt="\x1b]52;c;x\x07", temperature=0.0, max_new_tokens=10)
    race.lanes[Way.PLAIN].add(Chunk("\x1b[2Jcleared", (1,), TARGET_SOURCE), {}, seconds=1.0)
    assert "\x1b" not in shown(race, columns=100)


def test_the_table_and_the_verdict() -> None:
    console = Console(file=io.StringIO(), width=120)
    devices = EmulatedDevices(Emulation.parse("60/6@10").describe(), PassTiming(10, 0))
    print_report(RaceReport((raced(),), devices), console)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert "4.00x" in text
    assert "cosine is 4.00x as fast as plain decoding" in text


def test_a_race_can_be_kept_as_a_picture(tmp_path: Path) -> None:
    race = Race(domain="code", prompt="def", temperature=0.0, max_new_tokens=10)
    race.lanes[Way.COSINE].add(Chunk("quick", (1,), TARGET_SOURCE), {}, seconds=0.1)
    save_picture(race, tmp_path / "race.svg")
    svg = (tmp_path / "race.svg").read_text("utf-8")
    assert "quick" in svg
    assert "https://" not in svg
