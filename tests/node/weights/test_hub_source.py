"""Weights of a Hugging Face hub on loopback, by ranges of its files."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cosine_engine.models.hub_source import HubSource
from cosine_engine.models.partial_folder import INDEX, PartialFolder
from cosine_node.weights.fetching import SourcePlace, WeightsFetch
from cosine_node.weights.service import WeightsService
from cosine_p2p.text.held_weights import HeldWeights
from cosine_p2p.transport.base import Stream
from cosine_protocol.errors import RemoteProtocolError
from tests.cosine_p2p.gguf_samples import write_sample
from tests.node.weights.models import Nodes, held, new_folder, rows_of, write_model

pytestmark = pytest.mark.network
REPOSITORY = "someone/model"


@dataclass
class Hub:
    """A server of files with ranges. Records the sizes of ranges and the tokens."""

    folder: Path
    endpoint: str = ""
    asked: list[int] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    sends_ranges: bool = True

    def source(self, **more: Any) -> HubSource:
        return HubSource(REPOSITORY, endpoint=self.endpoint, **more)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    served = Hub(write_model(tmp_path / "whole"))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.tokens.add(self.headers.get("Authorization"))
            place, _, name = self.path.partition("/resolve/main/")
            file = served.folder / name
            if place == f"/{REPOSITORY}" and name:
                # As the hub does: to another address, which must not see the token.
                self.send_response(302)
                self.send_header("Location", f"{served.endpoint.replace('127.0.0.1', 'localhost')}/cdn/{name}")
                self.end_headers()
                return
            file = served.folder / self.path.removeprefix("/cdn/")
            if not file.is_file():
                self.send_error(404)
                return
            whole = data = file.read_bytes()
            status, told = 200, None
            if (asked := self.headers.get("Range")) and served.sends_ranges:
                first, last = map(int, asked.removeprefix("bytes=").split("-"))
                data, status = whole[first : last + 1], 206
                told = f"bytes {first}-{first + len(data) - 1}/{len(whole)}"
                served.asked.append(len(data))
            self.send_response(status)
            if told:
                self.send_header("Content-Range", told)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


def index(hub: Hub) -> None:
    names = {name: placed.file.name for name, placed in held(hub.folder).tensors.items()}
    (hub.folder / INDEX).write_text(json.dumps({"weight_map": names}))


async def fetch(
    source: HubSource,
    folder: PartialFolder,
    wanted: set[int],
    nodes: Nodes | None = None,
    *,
    left: asyncio.Event | None = None,
) -> None:
    """Fetch from the repository and nodes; `left` is set when the repository is read from no more."""

    @asynccontextmanager
    async def opened() -> Any:
        try:
            yield source
        finally:
            if left is not None:
                left.set()

    async def find() -> list[SourcePlace]:
        others = [] if nodes is None else await nodes.find()
        return [SourcePlace(source.name, opened), *others]

    await WeightsFetch(folder, wanted, what="the model", tell=lambda progress: None).run(find)


def test_the_wanted_tensors_come_by_ranges_and_prove_themselves_as_a_whole(hub: Hub, tmp_path: Path) -> None:
    index(hub)
    known = held(hub.folder)
    folder, rows = new_folder(known, tmp_path / "cache"), rows_of(known, "layers.1.")
    asyncio.run(fetch(hub.source(token="secret"), folder, rows))
    assert set(held(folder.path).tensors) == {known.manifest.tensors[row].name for row in rows}
    read = sum(hub.asked)
    share = sum(known.manifest.tensors[row].size_bytes for row in rows)
    assert share < read < 1.1 * share
    assert hub.tokens == {"Bearer secret", None}


def test_a_repository_with_other_weights_is_asked_no_more(
    hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    index(hub)
    known = held(hub.folder)
    for file in hub.folder.glob("*.safetensors"):
        data = bytearray(file.read_bytes())
        data[-9] ^= 1
        file.write_bytes(data)
    original = held(write_model(tmp_path / "original"))
    folder = new_folder(known, tmp_path / "cache")

    async def play() -> None:
        nodes, left = Nodes(original), asyncio.Event()

        async def serve_later(stream: Stream) -> None:
            await left.wait()
            await WeightsService(original).handle(stream)

        await nodes.add("peer", serve_later)
        await fetch(hub.source(), folder, rows_of(known, "model"), nodes, left=left)

    asyncio.run(play())
    assert held(folder.path).is_whole
    assert "sent other bytes of" in caplog.text


@pytest.mark.parametrize("listed", ["[]", '{"weight_map": {"a": "../secret"}}', "[" * 100_000])
def test_a_broken_list_is_an_error_of_the_hub(hub: Hub, listed: str) -> None:
    (hub.folder / INDEX).write_text(listed)
    with pytest.raises(RemoteProtocolError):
        asyncio.run(hub.source().look(held(hub.folder).manifest))


def gguf(hub: Hub, **how: Any) -> tuple[HubSource, HeldWeights]:
    (hub.folder / "four-bits").mkdir()
    file = write_sample(hub.folder / "four-bits" / "a.gguf", {"words": ["é"] * 50_000}, **how)
    return hub.source(file=f"four-bits/{file.name}"), held(file)


def test_of_a_gguf_file_the_header_and_the_wanted_tensors_come(hub: Hub, tmp_path: Path) -> None:
    source, known = gguf(hub)
    folder, rows = new_folder(known, tmp_path / "cache"), rows_of(known, "output_norm")
    asyncio.run(fetch(source, folder, rows))
    there = held(folder.path)
    assert set(there.tensors) == {"output_norm.weight"}
    assert there.content_digest == known.content_digest


@pytest.mark.parametrize("change", [lambda data: b"else" + data[4:], lambda data: data[:99]])
def test_a_damaged_gguf_file_is_an_error_of_the_hub(hub: Hub, change: Callable[[bytes], bytes]) -> None:
    source, known = gguf(hub)
    file = hub.folder / "four-bits" / "a.gguf"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(RemoteProtocolError, match="other files than those of a model"):
        asyncio.run(source.look(known.manifest))


def test_a_server_without_ranges_is_not_read_from(hub: Hub) -> None:
    index(hub)
    hub.sends_ranges = False
    with pytest.raises(RemoteProtocolError, match="sends no ranges"):
        asyncio.run(hub.source().look(held(hub.folder).manifest))


def test_a_name_of_the_hub_is_its_repository_unless_it_is_not_to_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    found = HubSource.of(REPOSITORY)
    assert found is not None and found.name.endswith(REPOSITORY)
    found = HubSource.of(f"hf:{REPOSITORY}/Q4_K_M/model.gguf")
    assert found is not None and found.name.endswith(f"{REPOSITORY}/Q4_K_M/model.gguf")
    others = ("someone", "zoo:target", "0" * 64, "../x", "hf:a/b/../c.gguf")
    assert [HubSource.of(other) for other in others] == [None] * len(others)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert HubSource.of(REPOSITORY) is None
