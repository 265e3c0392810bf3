"""What a fetch takes of a disk and of a processor: `python -m tests.node.weights.measure_fetch`."""

import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from cosine_node import zoo
from cosine_node.stages.engine import wanted_tensors
from cosine_p2p.text.held_weights import HeldWeights
from cosine_protocol.stage_messages import LayerRange
from tests.cosine_p2p.text.test_target import write_safetensors
from tests.node.weights.models import Nodes, new_folder


def measure(known: HeldWeights, layers: str, cache: Path) -> str:
    """A line about some layers of the embedded target, fetched from two sources."""
    folder = new_folder(known, cache)
    is_wanted = wanted_tensors(str(folder.path), LayerRange.parse(layers, layers=8))
    rows = [row for row, tensor in enumerate(known.manifest.tensors) if is_wanted(tensor.name)]

    async def fetch() -> None:
        nodes = Nodes(known)
        for name in ("one", "other"):
            await nodes.add(name)
        await nodes.fetch(folder, rows)

    asyncio.run(fetch())
    share = sum(known.manifest.tensors[row].size_bytes for row in rows)
    whole = sum(tensor.size_bytes for tensor in known.manifest.tensors)
    stored = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
    return (
        f"layers {layers}: {share:,} of {whole:,} bytes, {stored:,} on the disk, {stored / share:.3f} times as much"
    )


def measure_work(folder: Path) -> str:
    """A line about a large tensor in each of four layers, served and fetched in this process."""
    source = folder / "source"
    source.mkdir()
    (source / "config.json").write_text("{}")
    (source / "tokenizer.json").write_text("{}")
    data = random.Random(1).randbytes(32 << 20)
    write_safetensors(
        source / "model.safetensors", {f"layers.{layer}.up": ("U8", [len(data)], data) for layer in range(4)}
    )
    known = HeldWeights.read(source, cache_folder=folder / "hashes")

    async def fetch() -> None:
        nodes = Nodes(known)
        await nodes.add("one")
        await nodes.fetch(new_folder(known, folder / "cache"), range(4))

    began_s = time.process_time()
    asyncio.run(fetch())
    return f"128 MiB took {time.process_time() - began_s:.2f} s of a processor, for both ends"


def main() -> None:
    """Measure both stages of the tests of whole processes, and a larger model."""
    known = HeldWeights.read(zoo.folder("target"))
    for layers in ("0:3", "3:8"):
        with tempfile.TemporaryDirectory() as name:
            sys.stdout.write(measure(known, layers, Path(name)) + "\n")
    with tempfile.TemporaryDirectory() as name:
        sys.stdout.write(measure_work(Path(name)) + "\n")


if __name__ == "__main__":
    main()
