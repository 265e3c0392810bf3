"""Measures the processor time that a verifier spends on a stranger's message: `python -m ...measure_floods`."""

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Final

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_p2p.transport.channel import READ_BURST, READ_RATE
from cosine_protocol import messages as m
from cosine_protocol.codec import encode, encode_frame
from cosine_protocol.digests import request_digest
from cosine_protocol.request import Request
from tests.node.peers import request_of
from tests.node.verifier.test_service import opening, tree_of, verifying

PIECE_BYTES: Final = 65_536
FLOODS: Final[dict[str, Callable[[Request], m.Message]]] = {
    "Ping": lambda request: m.Ping(3, 1, 1),
    "Cancel of no request": lambda request: m.Cancel(77),
    "Tree of 4 nodes": lambda request: tree_of(request_digest(request), 0, (1, 2, 3, 4)),
    "Tree of 60 nodes": lambda request: tree_of(request_digest(request), 0, tuple(range(1, 13)) * 5),
    "Open of a number in use": opening,
    "Open of 120,000 prompt tokens": lambda request: opening(
        request_of(request.client, prompt=tuple(range(4000)) * 30), number=5
    ),
}


async def microseconds(name: str, *, units: float = READ_BURST) -> str:
    """A line with the time of one such message, and of a unit of `READ_RATE`; within the burst, so at once."""
    async with verifying(max_requests=4) as bench:
        caller = await bench.caller()
        request = request_of(caller.peer_id, max_new_tokens=4000)
        caller.post(opening(request, pacing=m.Pacing.PLAIN))
        await caller.until(m.Opened)
        frame = encode_frame(encode(FLOODS[name](request)))
        of_one = 1 + len(frame) / 1024
        count = int(0.9 * units / of_one)
        data = frame * count
        began_s = time.process_time()
        for start in range(0, len(data), PIECE_BYTES):
            await caller.channel._stream.write(data[start : start + PIECE_BYTES])
        await asyncio.sleep(0.2)
        each_us = 1e6 * (time.process_time() - began_s) / count
    return f"{name}: {len(frame)} bytes, {each_us:.0f} us each, {each_us / of_one:.0f} us a unit"


def main() -> None:
    """Measure all."""
    for name in FLOODS:
        sys.stdout.write(run_virtual(microseconds(name)) + "\n")
    sys.stdout.write(f"{READ_RATE:.0f} units a second of one peer are read\n")


if __name__ == "__main__":
    main()
