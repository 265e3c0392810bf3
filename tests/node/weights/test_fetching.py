"""Weights are fetched from several sources, piece by piece: what is wrong is found, what is there is kept."""

import asyncio
import hashlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from cosine_node.weights import fetching
from cosine_node.weights.fetching import Source, SourcePlace, WeightsFetch
from cosine_node.weights.partial_folder import PartialFolder
from cosine_node.weights.pieces import PieceBoard
from cosine_node.weights.service import WeightsService
from cosine_p2p.text.held_weights import HeldWeights
from cosine_p2p.transport.base import Stream
from cosine_protocol.errors import UsageError
from cosine_protocol.manifest import PIECE_BYTES, Manifest
from cosine_protocol.weight_messages import WeightKind
from tests.full_disk import full_disk
from tests.node.weights.models import Nodes, held, new_folder, rows_of, tensors, write_model

PIECES = 4
"""What a fetch brings before it is killed."""

Handler = Callable[[Stream], Awaitable[None]]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> HeldWeights:
    return held(write_model(tmp_path_factory.mktemp("models") / "whole"))


@pytest.fixture
def folder(known: HeldWeights, tmp_path: Path) -> PartialFolder:
    return new_folder(known, tmp_path / "cache")


class Counting(WeightsService):
    """Counts the pieces that it sends, and does something with each before."""

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
    """What a node has that holds the tensors with these parts of a name."""
    return replace(
        known, tensors={name: one for name, one in known.tensors.items() if any(part in name for part in parts)}
    )


def is_right(found: HeldWeights) -> bool:
    """True if the tensors in files are those of the model."""
    return all(
        placed.file.read_bytes()[placed.tensor.start :][: placed.tensor.size_bytes] == tensors()[name][2]
        for name, placed in found.tensors.items()
    )


def test_the_wanted_tensors_come_and_no_others(known: HeldWeights, folder: PartialFolder) -> None:
    async def play() -> None:
        nodes = Nodes(known)
        await nodes.add("all")
        await nodes.fetch(folder, rows_of(known, "layers.1.", "model.norm"))
        assert nodes.told[-1].fetched_bytes == nodes.told[-1].wanted_bytes

    asyncio.run(play())
    found = held(folder.path)
    wanted = {"model.layers.1.up.weight", "model.layers.1.norm.weight", "model.norm.weight"}
    assert (set(found.tensors), found.content_digest) == (wanted, known.content_digest)
    assert is_right(found)
    stored = sum(file.stat().st_size for file in folder.path.iterdir())
    assert stored < 1.15 * sum(len(tensors()[name][2]) for name in wanted)


def test_the_index_names_the_file_of_every_tensor(known: HeldWeights, folder: PartialFolder) -> None:
    named = json.loads((folder.path / "model.safetensors.index.json").read_text())["weight_map"]
    assert set(named) == set(tensors())
    assert named["model.layers.0.up.weight"] == named["model.layers.0.norm.weight"] != named["model.norm.weight"]


def test_two_sources_share_the_work(known: HeldWeights, folder: PartialFolder) -> None:
    services = [Counting(known), Counting(known)]

    async def play() -> None:
        nodes = Nodes(known, one_way_s=0.002)
        for number, service in enumerate(services):
            await nodes.add(str(number), service.handle)
        await nodes.fetch(folder, rows_of(known, "model"))

    asyncio.run(play())
    assert held(folder.path).is_whole
    assert all(service.sent for service in services)
    assert {piece for service in services for piece in service.sent} == {
        (row, piece) for row, tensor in enumerate(known.manifest.tensors) for piece in range(tensor.pieces)
    }


@dataclass(slots=True)
class Scripted:
    """A source of some tensors by row; `wait` is awaited before a read. It may be one that cannot tell digests."""

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


def test_what_is_proved_as_a_whole_never_takes_the_place_of_proved_pieces(
    known: HeldWeights, folder: PartialFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    [row] = rows_of(known, "layers.0.up")
    right = {at: tensors()[tensor.name][2] for at, tensor in enumerate(known.manifest.tensors)}
    last = known.manifest.tensors[row].pieces - 1
    others = {at: data for at, data in right.items() if at != row}
    begun, brought, left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Board(PieceBoard):
        def note_done(self, at: int, piece: int) -> bool:
            is_fresh = super().note_done(at, piece)
            if row not in self.lacking_rows:
                brought.set()
            return is_fresh

    async def be_late(at: int, piece: int) -> None:
        """The sooner source brings all pieces while this one reads its last."""
        if piece == last:
            begun.set()
            await brought.wait()

    async def be_ready(at: int, piece: int) -> None:
        """The rest comes, and the fetch ends, when the source of the whole has gone."""
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

    for name, value in {"LOOK_S": 0.01, "IDLE_S": 0.01, "PieceBoard": Board}.items():
        monkeypatch.setattr(fetching, name, value)
    fetch = WeightsFetch(folder, right.keys(), what="all", tell=lambda progress: None)
    asyncio.run(fetch.run(find))
    assert "whole sent other bytes of model.layers.0.up.weight" in caplog.text
    assert is_right(held(folder.path))


def test_each_source_is_asked_for_what_it_holds(known: HeldWeights, folder: PartialFolder) -> None:
    async def play() -> None:
        nodes = Nodes(known)
        for part in ("layers.0.", "layers.1.", "layers.2.", "model."):
            await nodes.add(part, Counting(some(known, part)).handle)
        await nodes.fetch(folder, rows_of(known, "model"))

    asyncio.run(play())
    assert held(folder.path).is_whole


@pytest.mark.parametrize("lie", [lambda data: data[::-1], lambda data: data[:-1], lambda data: b""])
def test_a_source_that_sends_wrong_bytes_is_asked_no_more(
    known: HeldWeights, folder: PartialFolder, lie: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    liar = Counting(known, lambda number, data: lie(data))

    async def play() -> None:
        nodes = Nodes(known, one_way_s=0.001)
        await nodes.add("liar", liar.handle)
        await nodes.add("honest")
        await nodes.fetch(folder, rows_of(known, "model"))

    asyncio.run(play())
    assert held(folder.path).is_whole
    assert "liar is not asked for weights any more" in caplog.text
    assert len(liar.sent) <= 16


def test_wrong_digests_of_pieces_are_found(known: HeldWeights, folder: PartialFolder) -> None:
    placed = known.tensors["model.layers.0.up.weight"]
    digests = (placed.tensor.digests[0], *reversed(placed.tensor.digests[1:]))
    wrong = replace(placed, tensor=replace(placed.tensor, digests=digests))
    lying = replace(known, tensors={**known.tensors, "model.layers.0.up.weight": wrong})

    async def play() -> None:
        nodes = Nodes(known, one_way_s=0.001)
        await nodes.add("liar", WeightsService(lying).handle)
        await nodes.add("honest")
        await nodes.fetch(folder, rows_of(known, "model"))

    asyncio.run(play())
    assert held(folder.path).is_whole


def test_a_slow_source_loses_its_share(known: HeldWeights, folder: PartialFolder) -> None:
    class Slow(Counting):
        async def _bytes(self, kind: WeightKind, index: int, offset: int) -> tuple[int, bytes]:
            if kind is WeightKind.TENSOR:
                await asyncio.sleep(0.3)
            return await super()._bytes(kind, index, offset)

    slow, fast = Slow(known), Counting(known)

    async def play() -> None:
        nodes = Nodes(known, one_way_s=0.001)
        await nodes.add("slow", slow.handle)
        await nodes.add("fast", fast.handle)
        await nodes.fetch(folder, rows_of(known, "model"))

    asyncio.run(play())
    assert held(folder.path).is_whole
    pieces = sum(tensor.pieces for tensor in known.manifest.tensors)
    # All but what the slow one had brought itself.
    assert len(fast.sent) >= pieces - len(slow.sent)
    assert len(slow.sent) < len(fast.sent)


def test_a_fetch_that_was_given_up_goes_on_where_it_was(known: HeldWeights, folder: PartialFolder) -> None:
    first, second = Counting(known), Counting(known)
    rows = rows_of(known, "layers.0.")

    async def play() -> None:
        nodes = Nodes(known, one_way_s=0.001)
        begun = asyncio.Event()

        def one_piece(number: int, data: bytes) -> bytes:
            if number == 3:
                begun.set()
                raise OSError
            return data

        first._change = one_piece
        await nodes.add("first", first.handle)
        fetch = asyncio.ensure_future(nodes.fetch(folder, rows))
        await begun.wait()
        await asyncio.sleep(0.1)
        fetch.cancel()
        await asyncio.gather(fetch, return_exceptions=True)
        again = Nodes(known)
        await again.add("second", second.handle)
        await again.fetch(new_folder(known, folder.path.parent), rows)

    asyncio.run(play())
    pieces = sum(known.manifest.tensors[row].pieces for row in rows)
    assert set(held(folder.path).tensors) == {known.manifest.tensors[row].name for row in rows}
    assert 0 < len(second.sent) < pieces


def test_a_process_that_is_killed_leaves_what_the_next_one_needs_not_fetch(tmp_path: Path) -> None:
    whole, cache = write_model(tmp_path / "whole"), tmp_path / "cache"
    command = [sys.executable, "-m", "tests.node.weights.interrupted", str(whole), str(cache)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "still\n"
        child.kill()
    known = held(whole)
    service = Counting(known)

    async def play() -> None:
        nodes = Nodes(known)
        await nodes.add("all", service.handle)
        await nodes.fetch(new_folder(known, cache), rows_of(known, "model"))

    asyncio.run(play())
    assert held(new_folder(known, cache).path).is_whole
    assert len(service.sent) == sum(tensor.pieces for tensor in known.manifest.tensors) - PIECES


def test_a_damaged_draft_is_mended(known: HeldWeights, folder: PartialFolder) -> None:
    rows = rows_of(known, "layers.0.")

    async def play() -> None:
        nodes = Nodes(known)
        await nodes.add("all")
        await nodes.fetch(folder, rows)
        (file,) = folder.files_of(rows)
        data = bytearray(file.path.read_bytes())
        data[-5] ^= 1
        file.draft.write_bytes(data)
        file.path.unlink()
        service = Counting(known)
        again = Nodes(known)
        await again.add("all", service.handle)
        await again.fetch(folder, rows)
        assert len(service.sent) == 1

    asyncio.run(play())
    held(folder.path)


def test_where_all_sources_are_gone_it_waits_and_says_what_lacks(
    known: HeldWeights, folder: PartialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in {"TELL_S": 0.05, "LOOK_S": 0.05, "REST_S": 0.05}.items():
        monkeypatch.setattr(fetching, name, seconds)

    async def play() -> None:
        nodes = Nodes(known)
        await nodes.add("part", WeightsService(some(known, "layers.0.")).handle)
        fetch = asyncio.ensure_future(nodes.fetch(folder, rows_of(known, "layers.")))
        lacking = (
            "Nobody offers 4 of the 6 tensors of the model now, such as model.layers.1.norm.weight; what is here"
        )
        await nodes.has_told(lambda told: told.lacking == f"{lacking} stays.")
        await nodes.add("rest")
        await fetch

    asyncio.run(play())
    assert len(held(folder.path).tensors) == 6


def test_a_source_that_hangs_up_is_asked_again_later(
    known: HeldWeights, folder: PartialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "REST_S", 0.01)
    monkeypatch.setattr(fetching, "LOOK_S", 0.05)
    service = Counting(known)
    streams: list[Stream] = []

    async def hangs_up(stream: Stream) -> None:
        streams.append(stream)
        if len(streams) == 1:
            stream.close()
            return
        await service.handle(stream)

    async def play() -> None:
        nodes = Nodes(known)
        await nodes.add("moody", hangs_up)
        await nodes.fetch(folder, rows_of(known, "layers.0."))

    asyncio.run(play())
    assert len(streams) == 2


def test_a_full_disk_is_told_in_one_sentence(known: HeldWeights, folder: PartialFolder) -> None:
    async def play() -> None:
        nodes = Nodes(known)
        await nodes.add("all")
        await nodes.fetch(folder, rows_of(known, "layers.0."))

    with full_disk(file_bytes=1000), pytest.raises(UsageError, match="cannot be written"):
        asyncio.run(play())


def test_what_does_not_fit_is_refused_before_it_is_fetched(
    known: HeldWeights, folder: PartialFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cosine_node.weights.partial_folder.SPARE_BYTES", 1 << 60)

    async def play() -> None:
        await Nodes(known).fetch(folder, rows_of(known, "layers.0."))

    with pytest.raises(UsageError, match="hold fewer layers"):
        asyncio.run(play())


def test_a_piece_that_another_source_has_brought_meanwhile_is_no_failure(
    known: HeldWeights, folder: PartialFolder
) -> None:
    (file,) = folder.files_of(rows_of(known, "layers.0.norm"))
    (row,) = rows_of(known, "layers.0.norm")
    folder.begin(file)
    folder.finish(file)
    before = file.path.read_bytes()
    folder.write(row, 0, bytes(known.manifest.tensors[row].size_bytes))
    assert file.path.read_bytes() == before
    file.path.unlink()
    with pytest.raises(FileNotFoundError):
        folder.write(row, 0, b"")
