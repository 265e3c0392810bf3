"""Fetching weights from several sources: wrong data is detected, and progress is kept."""

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from cosine_engine.models.partial_folder import PartialFolder
from cosine_node.weights import fetching
from cosine_node.weights.fetching import FetchProgress, Source, SourcePlace, WeightsFetch
from cosine_node.weights.pieces import PieceBoard
from cosine_node.weights.service import WeightsService
from cosine_p2p.text.held_weights import HeldWeights
from cosine_protocol.errors import UsageError
from cosine_protocol.weights import PIECE_BYTES, Manifest, WeightKind
from tests.full_disk import full_disk
from tests.node.weights.models import Nodes, fetch_from, held, new_folder, rows_of, tensors
from tests.scenes import in_real_time


@pytest.fixture
def folder(known: HeldWeights, tmp_path: Path) -> PartialFolder:
    return new_folder(known, tmp_path / "cache")


class Counting(WeightsService):
    def __init__(self, known: HeldWeights, change: Callable[[int, bytes], bytes] | None = None) -> None:
        super().__init__(known)
        self.sent: list[tuple[int, int]] = []
        self._change = change

    async def _bytes(self, kind: WeightKind, index: int, offset: int) -> tuple[int, bytes]:
        size, data = await super()._bytes(kind, index, offset)
        if kind is WeightKind.TENSOR:
            self.sent.append((index, offset // PIECE_BYTES))
            if self._change is not None:
                data = self._change(len(self.sent), data)
        return size, data


def some(known: HeldWeights, *parts: str) -> HeldWeights:
    return replace(
        known, tensors={name: one for name, one in known.tensors.items() if any(part in name for part in parts)}
    )


def is_right(found: HeldWeights) -> bool:
    return all(
        placed.file.read_bytes()[placed.tensor.start :][: placed.tensor.size_bytes] == tensors()[name][2]
        for name, placed in found.tensors.items()
    )


def test_the_wanted_tensors_come_and_no_others(known: HeldWeights, folder: PartialFolder) -> None:
    told = fetch_from(known, folder, "layers.1.", "model.norm", all=None).told[-1]
    assert told.fetched_bytes == told.wanted_bytes
    found = held(folder.path)
    wanted = {"model.layers.1.up.weight", "model.layers.1.norm.weight", "model.norm.weight"}
    assert (set(found.tensors), found.content_digest) == (wanted, known.content_digest)
    assert is_right(found)
    stored = sum(file.stat().st_size for file in folder.path.iterdir())
    assert stored < 1.15 * sum(len(tensors()[name][2]) for name in wanted)


@pytest.mark.parametrize("lie", [lambda data: data[::-1], lambda data: b""])
def test_a_source_that_sends_wrong_bytes_is_asked_no_more(
    known: HeldWeights, folder: PartialFolder, lie: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    liar = Counting(known, lambda number, data: lie(data))
    fetch_from(known, folder, "model", one_way_s=0.001, liar=liar, honest=None)
    assert held(folder.path).is_whole
    assert "liar is no longer asked for weights" in caplog.text
    assert len(liar.sent) <= 16


def test_wrong_digests_of_pieces_are_found(known: HeldWeights, folder: PartialFolder) -> None:
    placed = known.tensors["model.layers.0.up.weight"]
    digests = (placed.tensor.digests[0], *reversed(placed.tensor.digests[1:]))
    wrong = replace(placed, tensor=replace(placed.tensor, digests=digests))
    lying = replace(known, tensors={**known.tensors, "model.layers.0.up.weight": wrong})
    fetch_from(known, folder, "model", one_way_s=0.001, liar=WeightsService(lying), honest=None)
    assert held(folder.path).is_whole


def test_a_slow_source_loses_its_share(known: HeldWeights, folder: PartialFolder) -> None:
    class Slow(Counting):
        async def _bytes(self, kind: WeightKind, index: int, offset: int) -> tuple[int, bytes]:
            if kind is WeightKind.TENSOR:
                await asyncio.sleep(0.1)
            return await super()._bytes(kind, index, offset)

    slow, fast = Slow(known), Counting(known)
    fetch_from(known, folder, "model", one_way_s=0.001, slow=slow, fast=fast)
    assert held(folder.path).is_whole
    pieces = sum(tensor.pieces for tensor in known.manifest.tensors)
    # All but what the slow one had brought itself.
    assert len(fast.sent) >= pieces - len(slow.sent)
    assert len(slow.sent) < len(fast.sent)


def test_a_fetch_that_is_stopped_leaves_what_the_next_one_needs_not_fetch(
    known: HeldWeights, folder: PartialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "TELL_S", 0.01)

    class Halting(Counting):
        async def _bytes(self, kind: WeightKind, index: int, offset: int) -> tuple[int, bytes]:
            if kind is WeightKind.TENSOR and len(self.sent) >= 4:
                await asyncio.Event().wait()
            return await super()._bytes(kind, index, offset)

    halting, service = Halting(known), Counting(known)

    def is_written(told: FetchProgress) -> bool:
        sent_bytes = sum(known.manifest.tensors[row].piece_bytes(piece) for row, piece in halting.sent)
        return len(halting.sent) >= 4 and told.fetched_bytes == sent_bytes

    async def stop() -> None:
        nodes = Nodes(known)
        await nodes.add("all", halting.handle)
        fetch = asyncio.ensure_future(nodes.fetch(folder, rows_of(known, "model")))
        await nodes.has_told(is_written)
        fetch.cancel()
        await asyncio.gather(fetch, return_exceptions=True)

    asyncio.run(stop())
    fetch_from(known, folder, "model", all=service)
    assert held(folder.path).is_whole
    assert len(service.sent) == sum(tensor.pieces for tensor in known.manifest.tensors) - len(halting.sent)


def test_a_damaged_draft_is_mended(known: HeldWeights, folder: PartialFolder) -> None:
    fetch_from(known, folder, "layers.0.", all=None)
    (file,) = folder.files_of(rows_of(known, "layers.0."))
    data = bytearray(file.path.read_bytes())
    data[-5] ^= 1
    file.draft.write_bytes(data)
    file.path.unlink()
    service = Counting(known)
    fetch_from(known, folder, "layers.0.", all=service)
    assert len(service.sent) == 1 and is_right(held(folder.path))


@in_real_time
async def test_without_sources_it_waits_and_reports_missing_tensors(
    known: HeldWeights, folder: PartialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in {"TELL_S": 0.05, "LOOK_S": 0.05, "REST_S": 0.05}.items():
        monkeypatch.setattr(fetching, name, seconds)

    nodes = Nodes(known)
    await nodes.add("part", WeightsService(some(known, "layers.0.")).handle)
    fetch = asyncio.ensure_future(nodes.fetch(folder, rows_of(known, "layers.")))
    lacking = "No node offers 4 of the 6 tensors of the model now, such as model.layers.1.norm.weight; what is here"
    await nodes.has_told(lambda told: told.lacking == f"{lacking} stays.")
    await nodes.add("rest")
    await fetch
    assert len(held(folder.path).tensors) == 6


def test_a_full_disk_is_told_in_one_sentence(known: HeldWeights, folder: PartialFolder) -> None:
    with full_disk(file_bytes=1000), pytest.raises(UsageError, match="cannot be written"):
        fetch_from(known, folder, "layers.0.", all=None)


@dataclass(slots=True)
class Scripted:
    """A source of some tensors by row; `wait` is awaited before a read."""

    name: str
    held: dict[int, bytes]
    wait: Callable[[int, int], Awaitable[object]]
    tells_digests: bool = True
    readers: int = 1
    most_pieces: int = 1
    run_pieces: int = 1024

    async def look(self, manifest: Manifest) -> None:
        return

    def holds(self, row: int) -> bool:
        return row in self.held

    def note_lacks(self, row: int) -> None:
        raise AssertionError(row)

    async def digests(self, manifest: Manifest, row: int) -> list[bytes] | None:
        data = self.held[row]
        pieces = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]
        return [hashlib.sha256(piece).digest() for piece in pieces] if self.tells_digests else None

    async def read(self, manifest: Manifest, row: int, first_piece: int, count: int) -> bytes:
        await self.wait(row, first_piece)
        return self.held[row][first_piece * PIECE_BYTES : (first_piece + count) * PIECE_BYTES]


def watch_row(monkeypatch: pytest.MonkeyPatch, row: int, note: Callable[[], None]) -> None:
    """Call `note` when a tensor is complete, and shorten the pauses of a fetch."""

    class Board(PieceBoard):
        def note_done(self, at: int, piece: int) -> bool:
            is_fresh = super().note_done(at, piece)
            if row not in self.lacking_rows:
                note()
            return is_fresh

    for name, value in {"LOOK_S": 0.01, "IDLE_S": 0.01, "PieceBoard": Board}.items():
        monkeypatch.setattr(fetching, name, value)


def test_what_is_proved_as_a_whole_never_takes_the_place_of_proved_pieces(
    known: HeldWeights, folder: PartialFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    [row] = rows_of(known, "layers.0.up")
    right = {at: tensors()[tensor.name][2] for at, tensor in enumerate(known.manifest.tensors)}
    last = known.manifest.tensors[row].pieces - 1
    others = {at: data for at, data in right.items() if at != row}
    begun, brought, left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def be_late(at: int, piece: int) -> None:
        """The faster source finishes while this one reads its last piece."""
        if piece == last:
            begun.set()
            await brought.wait()

    async def be_ready(at: int, piece: int) -> None:
        """The fetch ends after the source of the whole has gone."""
        if at != row:
            await left.wait()

    @asynccontextmanager
    async def opened(source: Source) -> AsyncIterator[Source]:
        try:
            yield source
        finally:
            left.set()

    async def find() -> list[SourcePlace]:
        whole = Scripted("whole", {row: bytes(len(right[row]))}, be_late, tells_digests=False)
        later = [Scripted("sooner", {row: right[row]}, be_ready), Scripted("rest", others, be_ready)]
        sources = [whole, *(later if begun.is_set() else ())]
        return [SourcePlace(source.name, partial(opened, source)) for source in sources]

    watch_row(monkeypatch, row, brought.set)
    fetch = WeightsFetch(folder, right.keys(), what="all", tell=lambda progress: None)
    asyncio.run(fetch.run(find))
    assert "whole sent other bytes of model.layers.0.up.weight" in caplog.text
    assert is_right(held(folder.path))


def test_a_file_is_finished_though_its_source_is_banned_meanwhile(
    known: HeldWeights, folder: PartialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    [row], [other] = rows_of(known, "embed"), rows_of(known, "model.norm")
    right = {at: tensors()[known.manifest.tensors[at].name][2] for at in (row, other)}
    brought, occupied = asyncio.Event(), threading.Event()

    def occupy_thread() -> None:
        """Delay the thread that finishes the file."""
        if not brought.is_set():
            loop = asyncio.get_running_loop()
            loop.run_in_executor(None, occupied.wait)
            loop.call_later(0.1, occupied.set)
            brought.set()

    async def lie_late(at: int, piece: int) -> None:
        if at == other:
            await brought.wait()

    async def wait_for_liar(at: int, piece: int) -> None:
        await brought.wait()

    @asynccontextmanager
    async def opened(source: Source) -> AsyncIterator[Source]:
        yield source

    async def play() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        liar = Scripted("liar", {row: right[row], other: bytes(len(right[other]))}, lie_late, readers=2)
        liar.tells_digests = False
        sources = [liar, Scripted("honest", {other: right[other]}, wait_for_liar)]

        async def find() -> list[SourcePlace]:
            return [SourcePlace(source.name, partial(opened, source)) for source in sources]

        await WeightsFetch(folder, {row, other}, what="the model", tell=lambda progress: None).run(find)

    watch_row(monkeypatch, row, occupy_thread)
    asyncio.run(play())
    assert set(held(folder.path).tensors) == {known.manifest.tensors[at].name for at in (row, other)}
