"""The verified streams that a drafter keeps to learn from: one SQLite file, bounded in bytes, in a private folder.

One connection writes, used by one thread at a time. Others read concurrently, each the state at its beginning
(SQLite's write-ahead log: https://www.sqlite.org/wal.html).
"""

import heapq
import json
import logging
import os
import sqlite3
from array import array
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from cosine_protocol.request import Sampling
from cosine_train.learning.streams import VerifiedStream

NAME: Final = "streams.sqlite"
SCHEMA: Final = 2
"""The version of the tables below; a file of another version is moved aside."""
MIN_BYTES: Final = 4 << 20
"""Minimum bound of a store: about a hundred streams, of up to eight thousand tokens."""
DEFAULT_BYTES: Final = 64 << 20
"""About ten thousand streams of a few hundred tokens, and small compared with a small model."""
PAGE_BYTES: Final = 4096
"""SQLite's default."""
MOST_READ_BYTES: Final = 8 << 20
"""Two million tokens, which take about 80 MB of memory, and more than a round uses."""
OPEN_S: Final = 10.0
"""Maximum wait of a start for another writer, which is only `cosine-node learned forget`."""
DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})
"""SQLite's codes for an invalid file; other codes are about the disk, or other users of the file."""
MOST_OF_ONE_CLIENT: Final = 0.25
"""Bounds the influence of a client that floods a drafter or sends bad texts."""
ALWAYS_TOKENS: Final = 10_000
"""Tokens of a client that are always used; otherwise a swarm of two would never learn."""

_CREATE: Final = f"""
CREATE TABLE streams (
    number INTEGER PRIMARY KEY AUTOINCREMENT, client TEXT NOT NULL, digest BLOB NOT NULL,
    is_held_out INTEGER NOT NULL, count INTEGER NOT NULL, bytes INTEGER NOT NULL, sampling TEXT NOT NULL,
    prompt BLOB NOT NULL, tokens BLOB NOT NULL, guesses BLOB NOT NULL,
    UNIQUE (client, digest)
);
PRAGMA user_version = {SCHEMA};
"""
LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptStreams:
    """The contents of a store. `newest` is the number of the last stream ever added, 0 before the first."""

    streams: int = 0
    tokens: int = 0
    held_out_tokens: int = 0
    clients: int = 0
    newest: int = 0
    disk_bytes: int = 0


class StreamStore:
    """The streams in a folder, at most `max_bytes` including SQLite's log.

    Of too many, the oldest of the client with most bytes are dropped first. A text is kept once per client. A
    damaged file is moved aside and a new one created. Raises `OSError` if the folder cannot be written.
    """

    def __init__(self, folder: Path, *, max_bytes: int = DEFAULT_BYTES) -> None:
        if max_bytes < MIN_BYTES:
            raise ValueError(f"a store has at least {MIN_BYTES} bytes")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = folder / NAME
        self._cannot_write = False
        # Reserved twice for the write-ahead log, which grows by a transaction before it is truncated.
        self._log_bytes = max_bytes // 8
        self._pages = (max_bytes - 2 * self._log_bytes) // PAGE_BYTES
        try:
            self._connection = self._open()
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in DAMAGE:
                raise OSError(f"{self._file} cannot be used: {error}") from None
            self._connection = self._begin_anew(error)

    def add(self, stream: VerifiedStream) -> bool:
        """Keep a stream; return False if it is too large or the disk is full."""
        row = _row_of(stream)
        # At most its bytes on separate pages, and a split of each tree.
        row_bytes = sum(len(value) if isinstance(value, str | bytes) else 9 for value in row)
        need_pages = row_bytes // (PAGE_BYTES - 4) + 8
        # A change must fit into the log.
        if need_pages > self._pages // 24:
            return False
        try:
            # A stopped reader can fill the log: SQLite cannot truncate what is being read.
            is_kept = not self._log_is_full()
            if is_kept:
                self._insert(row, need_pages)
        except sqlite3.OperationalError as error:
            if not self._cannot_write and error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                LOG.warning(
                    "%s takes no texts (%s); drafts come all the same, and it is tried again", self._file, error
                )
                self._cannot_write = True
        except sqlite3.DatabaseError as error:
            self._connection.close()
            self._connection = self._begin_anew(error)
        else:
            self._cannot_write = False
            return is_kept
        return False

    def tokens_after(self, number: int) -> int:
        """Return the tokens of the streams to learn from that were added after that number."""
        query = "SELECT ifnull(sum(count), 0) FROM streams WHERE NOT is_held_out AND number > ?"
        return int(self._connection.execute(query, (number,)).fetchone()[0])

    def kept(self) -> KeptStreams:
        """Return the current contents."""
        return _kept(self._connection, self._file)

    def close(self) -> None:
        self._connection.close()

    def _insert(self, row: tuple[str | bytes | int, ...], need_pages: int) -> None:
        with self._connection:
            self._connection.execute("DELETE FROM streams WHERE client = ? AND digest = ?", row[:2])
            while self._used_pages() + need_pages > self._pages and self._drop_one():
                pass
            self._connection.execute(
                "INSERT INTO streams (client, digest, is_held_out, count, bytes, sampling, prompt, tokens, guesses)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                row,
            )

    def _drop_one(self) -> bool:
        """Delete the oldest stream of the client with most bytes; return False without streams."""
        deleted = self._connection.execute(
            "DELETE FROM streams WHERE number = (SELECT min(number) FROM streams WHERE client ="
            " (SELECT client FROM streams GROUP BY client ORDER BY sum(bytes) DESC, client LIMIT 1))"
        )
        return deleted.rowcount > 0

    def _log_is_full(self) -> bool:
        log = self._file.with_name(f"{NAME}-wal")
        if not log.exists() or log.stat().st_size <= self._log_bytes:
            return False
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return log.stat().st_size > self._log_bytes

    def _used_pages(self) -> int:
        (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
        (free,) = self._connection.execute("PRAGMA freelist_count").fetchone()
        return int(pages) - int(free)

    def _begin_anew(self, error: sqlite3.DatabaseError) -> sqlite3.Connection:
        """Move a damaged file to another name without its logs, and open a new one."""
        LOG.warning("%s is damaged (%s); it is moved aside and a new one begun", self._file, error)
        for left in _files_of(self._file)[1:]:
            left.unlink(missing_ok=True)
        os.replace(self._file, self._file.with_name(f"{NAME}.damaged"))
        return self._open()

    def _open(self) -> sqlite3.Connection:
        # Created here, unreadable for other users.
        os.close(os.open(self._file, os.O_CREAT | os.O_RDWR, 0o600))
        connection = sqlite3.connect(self._file, timeout=OPEN_S, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute(f"PRAGMA wal_autocheckpoint = {max(1, self._log_bytes // PAGE_BYTES // 2)}")
            connection.execute(f"PRAGMA journal_size_limit = {self._log_bytes}")
            (schema,) = connection.execute("PRAGMA user_version").fetchone()
            if schema == 0:
                connection.executescript(f"BEGIN;{_CREATE}COMMIT;")
            elif schema != SCHEMA:
                raise sqlite3.DatabaseError(f"it has the schema {schema}")
            (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if said != "ok":
                raise sqlite3.DatabaseError(said)
            connection.execute("SELECT client, digest, is_held_out, count, bytes FROM streams LIMIT 1")
            # A store with an earlier, larger bound shrinks at once.
            with connection:
                self._connection = connection
                while self._used_pages() > self._pages and self._drop_one():
                    pass
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            if pages > self._pages:
                connection.execute("VACUUM")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            # A stream waits for another process for a shorter time than a start.
            connection.execute("PRAGMA busy_timeout = 200")
        except BaseException:
            connection.close()
            raise
        return connection


def fair_part(streams: Sequence[VerifiedStream]) -> list[VerifiedStream]:
    """Return the streams such that no client has more than a quarter of the tokens, or an equal share if fewer.

    Of a client with more, and more than `ALWAYS_TOKENS`, the oldest are left out, never its last one.
    """
    numbers: defaultdict[str, deque[int]] = defaultdict(deque)
    tokens: defaultdict[str, int] = defaultdict(int)
    for number, stream in enumerate(streams):
        numbers[stream.client].append(number)
        tokens[stream.client] += len(stream.tokens)
    most = max(MOST_OF_ONE_CLIENT, 1 / max(1, len(numbers)))
    all_tokens = sum(tokens.values())
    left_out: set[int] = set()
    largest = [(-tokens[client], client) for client, own in numbers.items() if len(own) > 1]
    heapq.heapify(largest)
    while largest and -largest[0][0] > max(most * all_tokens, ALWAYS_TOKENS):
        count, client = heapq.heappop(largest)
        number = numbers[client].popleft()
        left_out.add(number)
        all_tokens -= len(streams[number].tokens)
        if len(numbers[client]) > 1:
            heapq.heappush(largest, (count + len(streams[number].tokens), client))
    return [stream for number, stream in enumerate(streams) if number not in left_out]


def is_held_out(tokens: Sequence[int]) -> bool:
    """Return True for one text in five, used for measuring; equal texts get the same answer."""
    return int.from_bytes(blake2b(_packed(tokens), digest_size=8).digest()) % 5 == 0


def read_streams(folder: Path, *, held_out: bool | None, after: int = 0) -> list[VerifiedStream]:
    """Return the streams in a folder with numbers above `after`, oldest first: held out, to learn from, or all.

    Of very many, the newest, limited by client as in `fair_part`. Raises `sqlite3.Error`.
    """
    streams: deque[VerifiedStream] = deque()
    left_bytes = MOST_READ_BYTES
    with closing(_reading(folder)) as connection:
        rows = connection.execute(
            "SELECT bytes, client, sampling, prompt, tokens, guesses FROM streams"
            " WHERE is_held_out = ifnull(?, is_held_out) AND number > ? ORDER BY number DESC",
            (held_out, after),
        )
        for size_bytes, *columns in rows:
            left_bytes -= size_bytes
            if left_bytes < 0:
                break
            streams.appendleft(_stream_of(*columns))
    return fair_part(streams)


def read_kept(folder: Path) -> KeptStreams:
    """Return the contents of the store in a folder, also while a learner uses it. Raises `sqlite3.Error`."""
    if not (folder / NAME).exists():
        return KeptStreams()
    with closing(_reading(folder)) as connection:
        return _kept(connection, folder / NAME)


def forget_streams(folder: Path) -> None:
    """Delete all streams in a folder, also while a learner uses it, and a damaged file that was moved aside.

    Deleted data is overwritten in the file; a disk or a file system may keep copies.
    """
    (folder / f"{NAME}.damaged").unlink(missing_ok=True)
    if not (folder / NAME).exists():
        return
    try:
        with closing(sqlite3.connect(folder / NAME, isolation_level=None)) as connection:
            for statement in ("secure_delete = ON", "wal_checkpoint(TRUNCATE)"):
                connection.execute(f"PRAGMA {statement}")
            connection.execute("DELETE FROM streams")
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.DatabaseError as error:
        LOG.warning("%s is damaged (%s) and deleted as it is", folder / NAME, error)
        for file in _files_of(folder / NAME):
            file.unlink(missing_ok=True)


def _reading(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{(folder / NAME).resolve().as_uri()}?mode=ro", uri=True)


def _kept(connection: sqlite3.Connection, file: Path) -> KeptStreams:
    streams, tokens, held_out_tokens, clients = connection.execute(
        "SELECT count(*), ifnull(sum(count), 0), ifnull(sum(count * is_held_out), 0), count(DISTINCT client)"
        " FROM streams"
    ).fetchone()
    newest = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'streams'").fetchone()
    return KeptStreams(
        streams=streams,
        tokens=tokens,
        held_out_tokens=held_out_tokens,
        clients=clients,
        newest=newest[0] if newest else 0,
        disk_bytes=sum(one.stat().st_size for one in _files_of(file) if one.exists()),
    )


def _row_of(stream: VerifiedStream) -> tuple[str | bytes | int, ...]:
    prompt, tokens, guesses = map(_packed, (stream.prompt, stream.tokens, stream.guesses))
    sampling = json.dumps(asdict(stream.sampling))
    size = len(prompt) + len(tokens) + len(guesses) + len(sampling)
    digest = blake2b(len(prompt).to_bytes(8) + prompt + tokens, digest_size=16).digest()
    held_out = is_held_out(stream.tokens)
    texts = (sampling, prompt, tokens, guesses)
    return (stream.client, digest, held_out, len(stream.tokens), size, *texts)


def _stream_of(client: str, sampling: str, prompt: bytes, tokens: bytes, guesses: bytes) -> VerifiedStream:
    return VerifiedStream(
        client=client,
        sampling=Sampling(**json.loads(sampling)),
        prompt=_unpacked(prompt),
        tokens=_unpacked(tokens),
        guesses=_unpacked(guesses),
    )


def _packed(tokens: Sequence[int]) -> bytes:
    return array("i", tokens).tobytes()


def _unpacked(data: bytes) -> tuple[int, ...]:
    return tuple(array("i", data))


def _files_of(file: Path) -> tuple[Path, ...]:
    return file, file.with_name(f"{NAME}-wal"), file.with_name(f"{NAME}-shm")
