"""Tests of the file of a client."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cosine_p2p.client_memory import KEEP_S, MAX_FILE_BYTES, MAX_SWARMS, MAX_TARGETS, VERSION, ClientMemory
from cosine_p2p.dht.cells import SealedRecord
from cosine_p2p.dht.postings import PostingChecker, RecordOpener
from cosine_p2p.storage.state_file import StateFile
from cosine_p2p.trust.peer_memory import FIRST_PAUSE_S
from cosine_protocol.records import Role, cell_name, seal_record
from tests.cosine_p2p.directory.test_known_peers import peer
from tests.cosine_p2p.samples import NETWORK, TARGET, identity_of, record_of
from tests.cosine_p2p.strategy.test_speed_trial import AT_HAND, measured_trials

NOW_S = 1_000_000.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "client.json"


def memory(file: Path, *, wall_s: float = NOW_S) -> ClientMemory:
    return ClientMemory(StateFile("client.json", max_bytes=MAX_FILE_BYTES, file=file), wall_s=lambda: wall_s)


def restored(file: Path, *, wall_s: float = NOW_S, now_s: float = 0.0) -> ClientMemory:
    found = memory(file, wall_s=wall_s)
    found.restore(now_s=now_s)
    return found


def test_the_next_process_knows_who_failed_who_was_right_and_how_fast_and_far_peers_are(file: Path) -> None:
    first = memory(file)
    first.failures.note_failed("dead", now_s=50.0)
    first.speeds.note_pass("fast", 0.06, now_s=50.0)
    first.distances.note_told("verifier", "drafter", 0.02, now_s=50.0)
    first.standings.note_right("right", now_s=50.0)
    first.standings.reject("wrong", now_s=50.0)
    first.trials["cosine"].restore(measured_trials().state())
    first.write(now_s=50.0)
    second = restored(file, wall_s=NOW_S + 20.0, now_s=3.0)
    assert second.distances.told.aged(3.0) == [("verifier drafter", 0.02, 20.0)]
    assert second.failures.avoided(3.0) == {"dead"}
    assert second.speeds.passes_s(["fast"], now_s=3.0) == {"fast": 0.06}
    assert second.standings.levels(["right"], now_s=3.0) == {"right": 1}
    assert second.standings.rejected(3.0) == {"wrong"}
    assert second.failures.avoided(3.0 + FIRST_PAUSE_S - 20.0) == frozenset()
    trial = second.trials["cosine"].find(AT_HAND)
    assert trial is not None and trial.way == 0
    put_back = restored(file, wall_s=0.0)
    assert put_back.failures.avoided(FIRST_PAUSE_S) == frozenset(), "a clock makes nothing younger"
    assert list(file.parent.iterdir()) == [file]


def test_the_named_file_is_used_and_none_without_a_name(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(file.parent))
    for given, kept in ((False, None), (str(file), file), (True, file.parent / "cosine-p2p" / "client.json")):
        ClientMemory.of(given).write(now_s=0.0)
        assert [path for path in file.parent.rglob("*") if path.is_file()] == ([] if kept is None else [kept])
        if kept is not None:
            kept.unlink()


BROKEN_PARTS: tuple[dict[str, Any], ...] = (
    {"version": VERSION + 1},
    {"failures": 5, "commits_s": {"a": 1}, "right": None, "place": [], "trials": [1]},
    {"swarms": {"main": [1]}},
    {"swarms": {"main": {"peers": 5, "targets": {TARGET: {"verifier": {"found_at_s": "now", "records": []}}}}}},
    {
        "swarms": {
            "main": {"targets": {TARGET: {"verifier": {"found_at_s": NOW_S, "records": [1, ["a", "b", "%"]]}}}}
        }
    },
)


@pytest.mark.parametrize("change", BROKEN_PARTS, ids=str)
def test_parts_that_are_not_ours_hold_nothing(file: Path, change: dict[str, Any]) -> None:
    file.parent.mkdir()
    whole = {"version": VERSION, "kept_at_s": NOW_S, "failures": [], "speeds": [], "swarms": {}}
    file.write_text(json.dumps(whole | change))
    found, swarm = restored(file), memory(file).of_swarm("main", target=TARGET)
    assert found.failures.avoided(0.0) == frozenset() and found.speeds.commits_s.items(0.0) == []
    assert swarm.peers() == () and not swarm.records(CHECKER).get(Role.VERIFIER)
    swarm.write([peer(1)], frozenset())
    assert memory(file).of_swarm("main").peers() == (peer(1),)


def sealed(
    number: int, *, role: Role = Role.VERIFIER, signer: int | None = None, issued_s: float = NOW_S
) -> SealedRecord:
    cell = cell_name(network=NETWORK, role=role, target=TARGET, prefix="")
    record = record_of(identity_of(number), now_s=issued_s, role=role)
    record = replace(record, target_digest=record.facts.digest())
    data = seal_record(record, identity_of(signer or number), key=cell)
    return SealedRecord(cell=cell, owner=record.peer_id, data=data)


def keep(file: Path, *found: SealedRecord, swarm: str = "main", target: str = TARGET) -> None:
    known = memory(file).of_swarm(swarm, target=target)
    known.note_found(Role.VERIFIER, target, found)
    known.write([], frozenset())


CHECKER = PostingChecker(NETWORK, RecordOpener())


def owners(file: Path, *, later_s: float = 0.0, checker: PostingChecker = CHECKER) -> list[str] | None:
    known = memory(file, wall_s=NOW_S + later_s).of_swarm("main", target=TARGET)
    found = known.records(checker).get(Role.VERIFIER)
    return None if found is None else [record.peer_id for record in found]


def ids(*numbers: int) -> list[str]:
    return [identity_of(number).peer_id for number in numbers]


def test_two_processes_keep_the_swarms_of_both(file: Path) -> None:
    one, other = memory(file), memory(file)
    for each, swarm, number in ((one, "a", 1), (other, "b", 2)):
        each.restore(now_s=0.0)
        each.of_swarm(swarm).write([peer(number)], frozenset())
    other.write(now_s=0.0)
    one.write(now_s=0.0)
    assert [memory(file).of_swarm(swarm).peers() for swarm in "ab"] == [(peer(1),), (peer(2),)]


def test_what_was_found_is_known_for_a_day_though_its_records_lapse_within_minutes(file: Path) -> None:
    assert owners(file) is None
    keep(file, sealed(1), sealed(2))
    opener = RecordOpener()
    later = owners(file, later_s=0.9 * KEEP_S, checker=PostingChecker(NETWORK, opener))
    assert owners(file) == later == ids(1, 2)
    assert opener.clocks.ahead_s(NOW_S + 0.9 * KEEP_S) is None, "old records say nothing of clocks"
    assert owners(file, later_s=KEEP_S) is None
    assert owners(file, later_s=-1.0) is None, "the clock was set back"


def test_swarms_and_targets_are_kept_apart_and_only_the_last_ones(file: Path) -> None:
    keep(file, sealed(1))
    for number in range(MAX_TARGETS - 1):
        keep(file, target=f"target {number}")
    for number in range(MAX_SWARMS - 1):
        keep(file, sealed(2), swarm=f"swarm {number}")
    assert owners(file) == ids(1)
    keep(file, target="one more")
    assert owners(file) is None
    keep(file, swarm="one more")
    keep(file, swarm="another")
    assert len(json.loads(file.read_text())["swarms"]) == MAX_SWARMS


@pytest.mark.parametrize(
    "bad",
    [
        sealed(1, signer=2),
        sealed(1, role=Role.DRAFTER),
        sealed(1, issued_s=NOW_S - 1000.0),
        replace(sealed(1), owner=identity_of(2).peer_id),
        replace(sealed(1), data=b"rubbish"),
    ],
    ids=["forged", "of another role", "lapsed", "another owner", "no record"],
)
def test_what_no_reader_would_have_believed_is_left_out(file: Path, bad: SealedRecord) -> None:
    keep(file, bad, sealed(3))
    assert owners(file) == ids(3)
