"""The kept streams: bounded for any client, shared among clients, and intact after a crash."""

import sqlite3
import stat
import subprocess
import sys
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_train.learning import stream_store
from cosine_train.learning.stream_store import (
    MIN_BYTES,
    MOST_OF_ONE_CLIENT,
    NAME,
    StreamStore,
    fair_part,
    forget_streams,
    is_held_out,
    read_kept,
    read_streams,
)
from tests.full_disk import full_disk
from tests.train.learning.streams import stream

LONGEST = 400
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 22))]


def bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def test_what_is_kept_comes_back_as_it_was(tmp_path: Path) -> None:
    streams = [stream(f"client {number % 4}", seed=number) for number in range(40)]
    with closing(StreamStore(tmp_path)) as store:
        assert all(store.add(each) for each in streams)
        assert store.kept().streams == 40
    learned, held_out = (read_streams(tmp_path, held_out=which) for which in (False, True))
    assert {*learned, *held_out} <= set(streams)
    assert set(learned) == set(fair_part([each for each in streams if not is_held_out(each.tokens)]))
    assert all(is_held_out(each.tokens) for each in held_out)


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with closing(StreamStore(folder)) as store:
        store.add(stream())
        assert not [file for file in (folder, *folder.iterdir()) if stat.S_IMODE(file.stat().st_mode) & 0o077]


@pytest.mark.parametrize("seed", SEEDS)
def test_it_never_takes_more_than_its_bound(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    with closing(StreamStore(tmp_path, max_bytes=MIN_BYTES)) as store:
        for number in range(200):
            size = rng.choice((10, 100, 1000, 6000))
            store.add(stream(f"client {rng.randrange(5)}", prompt=rng.randrange(size), tokens=size, seed=number))
            assert bytes_in(tmp_path) <= MIN_BYTES, f"seed {seed}, stream {number}"
        kept = store.kept()
    assert 0 < kept.streams < 200
    assert kept.disk_bytes > MIN_BYTES / 2, "most of the bound is used"


def test_of_too_many_the_oldest_of_the_client_with_most_go(tmp_path: Path) -> None:
    with closing(StreamStore(tmp_path, max_bytes=MIN_BYTES)) as store:
        store.add(stream("quiet", seed=0))
        for number in range(60):
            store.add(stream("flood", tokens=5000, seed=number))
    kept = [each.sampling.seed for each in read_streams(tmp_path, held_out=None) if each.client == "flood"]
    assert any(each.client == "quiet" for each in read_streams(tmp_path, held_out=None))
    assert kept == sorted(kept) and len(kept) < 60 and kept[-1] == 59


def test_the_same_text_of_a_client_is_kept_once_and_one_that_is_too_large_not_at_all(tmp_path: Path) -> None:
    with closing(StreamStore(tmp_path, max_bytes=MIN_BYTES)) as store:
        for _ in range(5):
            store.add(stream(seed=1))
        store.add(stream("another", seed=1))
        assert not store.add(stream(tokens=60_000, seed=2))
        assert store.kept().streams == 2


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(8, LONGEST)), max_size=60), st.integers(0, 3000))
def test_no_client_has_more_than_its_share(texts: list[tuple[int, int]], always_tokens: int) -> None:
    streams = [stream(str(client), tokens=tokens, seed=number) for number, (client, tokens) in enumerate(texts)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_store, "ALWAYS_TOKENS", always_tokens)
        fair = fair_part(streams)
    assert [each for each in streams if each in fair] == fair, "in order"
    assert {each.client for each in fair} == {each.client for each in streams}
    tokens: Counter[str] = Counter()
    for each in fair:
        tokens[each.client] += len(each.tokens)
    share = max(MOST_OF_ONE_CLIENT, 1 / max(1, len(tokens)))
    for client, count in tokens.items():
        own = [each for each in fair if each.client == client]
        assert count <= max(share * tokens.total(), always_tokens) or len(own) == 1
        if count < always_tokens - LONGEST:
            assert own == [each for each in streams if each.client == client]
        # It keeps the newest.
        assert own == [each for each in streams if each.client == client][-len(own) :]


@pytest.mark.parametrize("damage", [b"", b"no database at all" * 500, b"SQLite format 3\0" + bytes(9000)])
def test_a_damaged_file_is_moved_aside(tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / NAME).write_bytes(damage)
    with closing(StreamStore(tmp_path)) as store:
        assert store.add(stream())
        assert store.kept().streams == 1
    # An empty file is an empty database.
    assert (tmp_path / f"{NAME}.damaged").exists() == bool(damage)
    assert ("damaged" in caplog.text) == bool(damage)


def test_what_is_forgotten_is_nowhere_in_the_files(tmp_path: Path) -> None:
    secret = replace(stream(), client="S" * 40)
    with closing(StreamStore(tmp_path)) as store:
        for number in range(30):
            store.add(stream(seed=number))
        store.add(secret)
        store.add(stream(seed=1000))
        # A running learner continues.
        forget_streams(tmp_path)
        assert store.kept().streams == 0
        assert not any(b"S" * 40 in file.read_bytes() for file in tmp_path.iterdir())
        assert store.add(stream(seed=2))
    assert read_kept(tmp_path).streams == 1
    (tmp_path / NAME).write_bytes(b"damage" * 1000)
    forget_streams(tmp_path)
    assert read_kept(tmp_path).streams == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_kill_while_it_writes_leaves_a_readable_store(tmp_path: Path, seed: int) -> None:
    code = (
        "import sys\n"
        "from itertools import count\n"
        "from pathlib import Path\n"
        "from cosine_train.learning.stream_store import MIN_BYTES, StreamStore\n"
        "from tests.train.learning.streams import stream\n"
        "store = StreamStore(Path(sys.argv[1]), max_bytes=MIN_BYTES)\n"
        "for number in count():\n"
        "    store.add(stream(f'client {number % 3}', tokens=2000, seed=number))\n"
        "    print(number, flush=True)\n"
    )
    # A random number of streams is acknowledged; the kill is somewhere in the next.
    wait_for = Random(seed).randrange(1, 150)
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for _ in range(wait_for):
            writer.stdout.readline()
        writer.kill()
        acknowledged = wait_for - 1 + len(writer.stdout.readlines())
    with closing(StreamStore(tmp_path, max_bytes=MIN_BYTES)) as store:
        assert not (tmp_path / f"{NAME}.damaged").exists(), f"seed {seed}"
        assert store.kept().newest > acknowledged, f"seed {seed}: what was kept before is there"
        assert store.add(stream(seed=10_000))
    for each in read_streams(tmp_path, held_out=None):
        if each.sampling.seed < 10_000:
            assert each == stream(each.client, tokens=2000, seed=each.sampling.seed), f"seed {seed}"


def test_a_full_disk_is_said_once_and_texts_are_kept_again_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(StreamStore(tmp_path)) as store:
        assert store.add(stream(tokens=300, seed=1))
        with full_disk(file_bytes=(tmp_path / f"{NAME}-wal").stat().st_size):
            assert [store.add(stream(tokens=300, seed=seed)) for seed in range(2, 6)] == [False] * 4
            assert store.kept().streams == 1
        [record] = caplog.records
        assert record.getMessage().startswith(f"{tmp_path / NAME} takes no texts (")
        assert store.add(stream(tokens=300, seed=6))
    assert len(read_streams(tmp_path, held_out=None)) == 2


def test_a_store_that_another_process_locks_is_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_store, "OPEN_S", 0.1)
    with closing(StreamStore(tmp_path)) as store:
        store.add(stream())
    with closing(sqlite3.connect(tmp_path / NAME, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OSError, match="cannot be used"):
            StreamStore(tmp_path)
    assert read_kept(tmp_path).streams == 1
    assert not (tmp_path / f"{NAME}.damaged").exists()
