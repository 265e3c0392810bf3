"""Records kept between runs: as they were signed, few of them, for a day."""

import json
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import pytest

from cosine_p2p.directory.known_records import (
    KEEP_S,
    MAX_FILE_BYTES,
    MAX_RECORDS,
    MAX_TARGETS,
    KnownRecords,
    SealedRecord,
)
from cosine_p2p.directory.postings import PostingChecker, RecordOpener
from cosine_protocol.records import Role, cell_name, seal_record
from tests.cosine_p2p.samples import NETWORK, TARGET, identity_of, record_of

FOUND_S = 1_000_000.0


class Clock:
    now_s = FOUND_S

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "records.json"


def sealed(
    number: int, *, role: Role = Role.VERIFIER, signer: int | None = None, issued_s: float = FOUND_S
) -> SealedRecord:
    cell = cell_name(network=NETWORK, role=role, target=TARGET, prefix="")
    record = record_of(identity_of(number), now_s=issued_s, role=role)
    record = replace(record, target_digest=record.facts.digest())
    return SealedRecord(
        cell=cell,
        owner=record.peer_id,
        data=seal_record(record, identity_of(signer or number), key=cell),
    )


def known(file: Path, clock: Clock, *, swarm: str = "main", target: str = TARGET) -> KnownRecords:
    return KnownRecords(swarm, target, clock=clock, file=file)


def keep(file: Path, *found: SealedRecord, role: Role = Role.VERIFIER, met: frozenset[str] = frozenset()) -> None:
    records = known(file, Clock())
    records.note(role, TARGET, found)
    records.write(met)


def owners(file: Path, *, later_s: float = 0.0, role: Role = Role.VERIFIER) -> list[str] | None:
    clock = Clock()
    clock.now_s += later_s
    found = known(file, clock).read(PostingChecker(NETWORK, RecordOpener())).get(role)
    return None if found is None else [record.peer_id for record in found]


def ids(*numbers: int) -> list[str]:
    return [identity_of(number).peer_id for number in numbers]


def test_what_was_found_is_known_for_a_day_though_its_records_lapse_within_minutes(file: Path) -> None:
    assert owners(file) is None
    keep(file, sealed(1), sealed(2))
    assert owners(file) == owners(file, later_s=0.9 * KEEP_S) == ids(1, 2)
    assert owners(file, later_s=KEEP_S) is None
    assert owners(file, later_s=-1.0) is None, "the clock was set back"
    assert list(file.parent.iterdir()) == [file]


def test_that_there_are_no_drafters_is_known_too(file: Path) -> None:
    keep(file, role=Role.DRAFTER)
    assert owners(file, role=Role.DRAFTER) == []
    assert owners(file) is None


def test_a_new_look_replaces_the_old_one_and_leaves_the_other_role(file: Path) -> None:
    keep(file, sealed(1, role=Role.DRAFTER), role=Role.DRAFTER)
    keep(file, sealed(2))
    keep(file, sealed(3))
    assert owners(file) == ids(3)
    assert owners(file, role=Role.DRAFTER) == ids(1)


def test_a_run_that_found_nothing_new_leaves_all_as_it_was(file: Path) -> None:
    keep(file, sealed(1))
    known(file, Clock()).write(frozenset())
    assert owners(file) == ids(1)


def test_few_are_kept_those_that_were_met_before_others(file: Path) -> None:
    most = MAX_RECORDS[Role.VERIFIER]
    numbers = range(1, most + 5)
    keep(file, *map(sealed, numbers), met=frozenset(ids(most + 4)))
    assert owners(file) == ids(most + 4, *range(1, most))


def test_swarms_and_targets_are_kept_apart_and_only_the_last_ones(file: Path) -> None:
    keep(file, sealed(1))
    for number in range(MAX_TARGETS):
        records = known(file, Clock(), swarm=f"swarm {number}")
        records.note(Role.VERIFIER, "another target", [])
        records.note(Role.VERIFIER, TARGET, [sealed(2)])
        records.write(frozenset())
        if number == 0:
            assert owners(file) == ids(1)
    assert owners(file) is None
    assert len(json.loads(file.read_text())["targets"]) == MAX_TARGETS


@pytest.mark.parametrize(
    "bad",
    [
        sealed(1, signer=2),
        sealed(1, role=Role.DRAFTER),
        sealed(1, issued_s=FOUND_S - 1000.0),
        SealedRecord(cell="cosine/other/verifier/x/", owner=identity_of(1).peer_id, data=sealed(1).data),
        SealedRecord(cell=sealed(1).cell, owner=identity_of(2).peer_id, data=sealed(1).data),
        SealedRecord(cell=sealed(1).cell, owner=identity_of(1).peer_id, data=b"rubbish"),
    ],
    ids=["forged", "of another role", "lapsed when it was found", "another cell", "another owner", "no record"],
)
def test_what_no_reader_would_have_believed_is_left_out(file: Path, bad: SealedRecord) -> None:
    keep(file, bad, sealed(3))
    assert owners(file) == ids(3)


def test_a_file_that_is_broken_too_large_or_of_another_version_holds_nobody(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep(file, sealed(1))
    whole = file.read_text()
    for text in (whole[:-9], whole + " " * MAX_FILE_BYTES, "[]"):
        file.write_text(text)
        caplog.clear()
        assert owners(file) is None
        assert "is broken and counts as empty" in caplog.text
    for value in (
        json.loads(whole) | {"version": 2},
        {"version": 1, "targets": []},
        {"version": 1, "targets": {f"main {TARGET}": [1]}},
        {"version": 1, "targets": {f"main {TARGET}": {"verifier": {"found_at_s": "now", "records": []}}}},
    ):
        file.write_text(json.dumps(value))
        assert owners(file) is None
    entries = [1, ["a"], ["a", "b", "%"], ["a", "b", b64encode(bytes(9000)).decode()]]
    place = {"verifier": {"found_at_s": FOUND_S, "records": entries}}
    file.write_text(json.dumps({"version": 1, "targets": {f"main {TARGET}": place}}))
    assert owners(file) == []
    keep(file, sealed(1))
    assert owners(file) == ids(1)


def test_records_of_long_ago_say_nothing_of_clocks(file: Path) -> None:
    keep(file, sealed(1))
    opener, clock = RecordOpener(), Clock()
    clock.now_s += 0.5 * KEEP_S
    known(file, clock).read(PostingChecker(NETWORK, opener))
    assert opener.clocks.ahead_s(clock()) is None
