"""Weights: a node that serves them to strangers, and one that fetches them from a stranger.

The stranger's bytes are moves, as in `serving`; a corrected answer is to the last question.
"""

import asyncio
import hashlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_node.weights.peer_source import PeerSource
from cosine_node.weights.service import WeightsService
from cosine_p2p.text.held_weights import HeldWeights, PlacedTensor
from cosine_p2p.text.tensor_hashes import HashedTensor
from cosine_protocol.codec import encode
from cosine_protocol.errors import CosineError
from cosine_protocol.identity import Identity
from cosine_protocol.stream import Error, Hello
from cosine_protocol.weights import (
    PIECE_BYTES,
    WEIGHTS,
    AskWeights,
    Manifest,
    ManifestPart,
    WeightBytes,
    WeightKind,
    manifest_digest,
)
from tests.fuzz.asking import HostilePeer
from tests.fuzz.serving import MENDED, WAITS_S, HostileStream, mended_bytes, play
from tests.fuzz.target import moves, script
from tests.fuzz.watching import stream_target
from tests.fuzz.wire import message_of

SERVER: Final = Identity.from_seed(bytes([104]) * 32)
TRUE: Final = 32
"""The bit of a move for the correct answer."""
SMALL: Final = bytes(range(16))
LARGE: Final = bytes(PIECE_BYTES + 5)


def _hashed(name: str, data: bytes) -> HashedTensor:
    digests = [hashlib.sha256(data[at : at + PIECE_BYTES]).digest() for at in range(0, len(data), PIECE_BYTES)]
    return HashedTensor(name, "U8", (len(data),), 0, len(data), tuple(digests))


def _held() -> HeldWeights:
    config = b"{}"
    tensors = [_hashed("a", SMALL), _hashed("b", LARGE), _hashed("c", b"")]
    manifest = Manifest(
        (ManifestPart("config.json", len(config), hashlib.sha256(config).digest()),),
        tuple(tensor.row() for tensor in tensors),
    )
    here = {tensor.name: PlacedTensor(Path(tensor.name), tensor) for tensor in tensors[:2]}
    return HeldWeights(manifest=manifest, encoded=manifest.encode(), parts={"config.json": config}, tensors=here)


HELD: Final = _held()
DIGEST: Final = HELD.content_digest


class ScriptedService(WeightsService):
    """Serves tensors without files."""

    async def _read(self, file: Path, start: int, size_bytes: int) -> bytes:
        return (SMALL if file.name == "a" else LARGE)[start : start + size_bytes]


async def _serve(data: bytes) -> None:
    service = ScriptedService(HELD)

    def mend(message: Any, stream: HostileStream) -> Any:
        del stream
        if not isinstance(message, AskWeights):
            return message
        return replace(message, content_digest=DIGEST, index=message.index % 4, offset=message.offset % (1 << 19))

    await play(data, service.handle, mend)


def _answer(asked: AskWeights) -> WeightBytes:
    tensors = [placed.tensor for placed in HELD.tensors.values()]
    row = tensors[min(asked.index, 1)]
    whole = {
        WeightKind.MANIFEST: HELD.encoded,
        WeightKind.PART: HELD.parts["config.json"],
        WeightKind.HELD: b"\xc0",
        WeightKind.DIGESTS: b"".join(row.digests),
        WeightKind.TENSOR: (SMALL, LARGE)[min(asked.index, 1)],
    }[WeightKind(asked.kind)]
    return WeightBytes(asked.number, len(whole), whole[asked.offset : asked.offset + PIECE_BYTES])


async def _read_all(source: PeerSource) -> None:
    manifest, encoded = await source.manifest()
    assert manifest_digest(encoded) == DIGEST and manifest == HELD.manifest
    assert await source.parts(manifest) == HELD.parts
    await source.look(manifest)
    for row, tensor in enumerate(manifest.tensors):
        if not source.holds(row):
            continue
        assert len(await source.digests(manifest, row)) == tensor.pieces
        for piece in range(tensor.pieces):
            assert len(await source.read(manifest, row, piece, 1)) == tensor.piece_bytes(piece)


async def _fetch(data: bytes) -> None:
    network = MemoryNetwork(one_way_s=0.001)
    peer, here = HostilePeer(SERVER), network.join("here")
    await network.join(SERVER.peer_id).serve(WEIGHTS, peer.handle)
    failures: list[CosineError] = []

    async def ask() -> None:
        try:
            async with PeerSource.opened(here, SERVER.peer_id, DIGEST) as source:
                await _read_all(source)
        except CosineError as error:
            failures.append(error)

    asking = asyncio.ensure_future(ask())
    for how, sent in moves(data):
        await asyncio.sleep(0.01)
        asked = next((one for one in reversed(peer.heard) if isinstance(one, AskWeights)), None)

        def mend(message: Any, how: int = how, asked: AskWeights | None = asked) -> Any:
            if asked is None or not isinstance(message, WeightBytes | Error):
                return message
            return _answer(asked) if how & TRUE else replace(message, number=asked.number)

        await peer.say(mended_bytes(how, sent, mend))
        await asyncio.sleep(WAITS_S[how >> 3 & 3])
    with suppress(TimeoutError):
        async with asyncio.timeout(60.0):
            await asyncio.shield(asking)
    assert asking.done(), "a fetch waits for ever"
    await asking
    if failures:
        raise failures[0]


def _serve_seeds() -> list[bytes]:
    hello, asked = encode(message_of(Hello)), message_of(AskWeights)
    kinds = [encode(replace(asked, kind=kind, index=1, offset=0)) for kind in WeightKind]
    return [script((0, hello), *((MENDED | 8, one) for one in kinds)), script((0, hello), (0, kinds[0]))]


def _fetch_seeds() -> list[bytes]:
    hello, told = encode(message_of(Hello)), encode(message_of(WeightBytes))
    true = (MENDED | TRUE, told)
    return [
        script((0, hello), *[true] * 9),
        script((0, hello), true, (MENDED, told)),
        script((0, hello), true, true, (MENDED, encode(Error(1, 23, "", None))), true),
    ]


TARGETS: Final = {
    "weights": stream_target(_serve, _serve_seeds),
    "weights-source": stream_target(_fetch, _fetch_seeds),
}
