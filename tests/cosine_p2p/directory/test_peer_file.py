"""Failures, speeds, standings and distances are there for the next process, as old as they are by then."""

import json
from pathlib import Path
from random import Random

import pytest

from cosine_p2p.directory.distances import Distances
from cosine_p2p.directory.peer_file import MAX_FILE_BYTES, PeerFile
from cosine_p2p.trust.peer_memory import FIRST_PAUSE_S, PeerFailures, PeerSpeeds
from cosine_p2p.trust.standing import Standings


def unknown() -> Distances:
    return Distances(Random(0).random)


def read(file: Path, *, wall_s: float, now_s: float) -> tuple[PeerFailures, PeerSpeeds, Standings, Distances]:
    kept = PeerFailures(), PeerSpeeds(), Standings(), unknown()
    PeerFile(file, wall_s=lambda: wall_s).read_into(*kept, now_s=now_s)
    return kept


def test_the_next_process_knows_who_failed_and_who_is_fast(tmp_path: Path) -> None:
    file, failures, speeds = tmp_path / "state" / "peers.json", PeerFailures(), PeerSpeeds()
    failures.note_failed("dead", now_s=50.0)
    speeds.note_pass("fast", 0.06, now_s=50.0)
    distances = unknown()
    distances.note_told("verifier", "drafter", 0.02, now_s=50.0)
    standings = Standings()
    standings.note_right("right", now_s=50.0)
    standings.reject("wrong", now_s=50.0)
    PeerFile(file, wall_s=lambda: 1e9).write(failures, speeds, standings, distances, now_s=50.0)
    failures, speeds, standings, distances = read(file, wall_s=1e9 + 20.0, now_s=3.0)
    assert distances.state(3.0)["told"] == [["verifier", "drafter", 0.02, 20.0]]
    assert failures.avoided(3.0) == {"dead"} and speeds.passes_s(["fast"], now_s=3.0) == {"fast": 0.06}
    assert standings.levels(["right"], now_s=3.0) == {"right": 1} and standings.rejected(3.0) == {"wrong"}
    assert failures.avoided(3.0 + FIRST_PAUSE_S - 20.0) == frozenset()


def test_a_clock_that_was_put_back_makes_nothing_younger(tmp_path: Path) -> None:
    file, failures = tmp_path / "peers.json", PeerFailures()
    failures.note_failed("dead", now_s=0.0)
    PeerFile(file, wall_s=lambda: 1e9).write(failures, PeerSpeeds(), Standings(), unknown(), now_s=0.0)
    failures, *_ = read(file, wall_s=0.0, now_s=0.0)
    assert failures.avoided(FIRST_PAUSE_S) == frozenset()


BROKEN = ("", "[]", "{", '{"kept_at_s": "then", "failures": [], "speeds": []}', " " * (MAX_FILE_BYTES + 1))


@pytest.mark.parametrize("text", [*BROKEN, json.dumps({"kept_at_s": 1.0, "failures": 5, "speeds": {"a": 1}})])
def test_a_file_that_is_not_ours_holds_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "peers.json"
    file.write_text(text, "utf-8")
    failures, speeds, standings, distances = read(file, wall_s=2.0, now_s=0.0)
    assert failures.avoided(0.0) == frozenset()
    assert speeds.state(0.0) == standings.state(0.0) == []
    assert distances.state(0.0) == unknown().state(0.0)


def test_a_file_of_an_older_version_holds_what_it_holds(tmp_path: Path) -> None:
    file = tmp_path / "peers.json"
    file.write_text(json.dumps({"kept_at_s": 1.0, "failures": [["dead", 1, 60.0, 0.0]], "speeds": []}), "utf-8")
    failures, _, _, distances = read(file, wall_s=2.0, now_s=0.0)
    assert failures.avoided(0.0) == {"dead"} and distances.state(0.0) == unknown().state(0.0)
