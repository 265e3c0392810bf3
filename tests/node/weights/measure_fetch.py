"""What a fetch takes of a disk and of a processor: `python -m tests.node.weights.measure_fetch`.

With `FILE.gguf 14:28` of layers of a file, beside reading them from the disk, and the most memory that it took.
"""

import asyncio
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from cosine_node import zoo
from cosine_node.engine.torch.loading import read_config
from cosine_node.gguf.unfolding import unfold_part
from cosine_node.stages.engine import load_part, wanted_tensors
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


@contextmanager
def told(what: str) -> Iterator[None]:
    """Print what a block took."""
    began_s, worked_s = time.monotonic(), time.process_time()
    yield
    seconds, work_s = time.monotonic() - began_s, time.process_time() - worked_s
    peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sys.stdout.write(f"{what}: {seconds:.1f} s, {work_s:.1f} s of a processor, {peak_bytes:,} bytes at most\n")
    sys.stdout.flush()


def forget(file: Path) -> None:
    """Let the next reader of a file read it from the disk."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure_file(file: Path, layers: str, cache: Path) -> None:
    """Print what it takes to hash a GGUF file, to fetch layers of it from one who has it, and to read them."""
    forget(file)
    with told(f"{file.stat().st_size:,} bytes hashed"):
        known = HeldWeights.read(file, cache_folder=cache / "hashes")
    folder = new_folder(known, cache / "fetched")
    unfold_part(folder.path)
    config = read_config(str(folder.path))
    part = LayerRange.parse(layers, layers=config.num_hidden_layers)
    is_wanted = wanted_tensors(str(folder.path), part)
    rows = [row for row, tensor in enumerate(known.manifest.tensors) if is_wanted(tensor.name)]
    size_bytes = sum(known.manifest.tensors[row].size_bytes for row in rows)

    async def fetch() -> None:
        nodes = Nodes(known)
        await nodes.add("one")
        await nodes.fetch(folder, rows)

    forget(file)
    with told(f"{size_bytes:,} bytes fetched, both ends in this process"):
        asyncio.run(fetch())
    with told("proved"):
        HeldWeights.read(folder.path, cache_folder=cache / "hashes")
    for kept in folder.path.glob("*.gguf"):
        forget(kept)
    with told("read into memory"):
        load_part(str(folder.path), part, dtype=torch.float32)


def main(*of_file: str) -> None:
    """Measure both stages of the tests of whole processes, and a larger model; or layers of a file."""
    if of_file:
        with tempfile.TemporaryDirectory() as name:
            measure_file(Path(of_file[0]), of_file[1], Path(name))
        return
    known = HeldWeights.read(zoo.folder("target"))
    for layers in ("0:3", "3:8"):
        with tempfile.TemporaryDirectory() as name:
            sys.stdout.write(measure(known, layers, Path(name)) + "\n")
    with tempfile.TemporaryDirectory() as name:
        sys.stdout.write(measure_work(Path(name)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
