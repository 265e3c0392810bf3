"""A fetch that stands still after some pieces, to be killed then; its arguments are a model and a cache."""

import asyncio
import sys
from pathlib import Path

from tests.node.weights.models import Nodes, held, new_folder, rows_of
from tests.node.weights.test_fetching import PIECES, Counting


async def fetch(model: Path, cache: Path) -> None:
    known = held(model)
    service = Counting(known)
    still = asyncio.Event()
    read = service._read

    async def read_some(file: Path, start: int, size_bytes: int) -> bytes:
        if len(service.sent) >= PIECES:
            still.set()
            await asyncio.Event().wait()
        return await read(file, start, size_bytes)

    service._read = read_some
    nodes = Nodes(known)
    await nodes.add("all", service.handle)
    fetching = asyncio.ensure_future(nodes.fetch(new_folder(known, cache), rows_of(known, "model")))
    await still.wait()
    # What was sent before is on its way to the disk.
    await asyncio.sleep(0.5)
    sys.stdout.write("still\n")
    sys.stdout.flush()
    await fetching


if __name__ == "__main__":
    asyncio.run(fetch(Path(sys.argv[1]), Path(sys.argv[2])))
