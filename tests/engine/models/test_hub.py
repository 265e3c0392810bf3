"""Models of a Hugging Face hub on loopback that answers, is mute, or is unreachable."""

import json
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import huggingface_hub
import pytest
from huggingface_hub import constants

from cosine_engine import zoo
from cosine_engine.models import hub as hub_room
from cosine_engine.models.hub import HubModel
from cosine_protocol.errors import UsageError

pytestmark = pytest.mark.network
NAME = "someone/toy"
OLD, NEW = "0" * 40, "1" * 40
MODEL = zoo.folder("target")
ALIKE = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


@dataclass
class Hub:
    """A server of one repository at a commit. What begins with a path of `mute` gets no answer."""

    cache: Path
    commit: str = NEW
    mute: tuple[str, ...] = ()
    pause_s: float = 0.0
    files: dict[str, bytes] = field(default_factory=lambda: {name: (MODEL / name).read_bytes() for name in ALIKE})
    asked: list[str] = field(default_factory=list)

    def holds(self, *, without: str = "") -> Path:
        root = self.cache / "models--someone--toy"
        folder = Path(shutil.copytree(MODEL, root / "snapshots" / OLD))
        (root / "refs").mkdir(exist_ok=True)
        (root / "refs" / "main").write_text(OLD)
        if without:
            (folder / without).unlink()
        return folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    made, closing = Hub(tmp_path / "cache"), Event()
    tree = [{"type": "file", "path": name, "size": len(data), "oid": name} for name, data in made.files.items()]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.asked.append(self.path)
            if self.path.startswith(made.mute or "-"):
                closing.wait(30)
                return
            name = self.path.partition("/resolve/")[2].partition("/")[2]
            place, about = self.path.partition("?")[0], f"/api/models/{NAME}"
            said = {"id": NAME, "sha": made.commit}
            answers = {about: said, f"{about}/revision/main": said, f"{about}/tree/{NEW}": tree}
            if (found := answers.get(place)) is not None:
                data = json.dumps(found).encode()
            elif name in made.files and self.path.startswith(f"/{NAME}/resolve/"):
                data = made.files[name]
            else:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("ETag", f'"{name.replace("/", "-")}"')
            self.send_header("X-Repo-Commit", made.commit)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "GET":
                for start in range(0, len(data), 1 << 20):
                    self.wfile.write(data[start : start + (1 << 20)])
                    closing.wait(made.pause_s)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        point_at(f"http://127.0.0.1:{server.server_port}", monkeypatch)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(made.cache))
        yield made
        closing.set()
        server.shutdown()


def point_at(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    huggingface_hub.close_session()


def test_what_is_not_here_is_downloaded_and_then_held(hub: Hub) -> None:
    model = HubModel.parse(NAME)
    assert model.held() is None
    folder = model.fetch()
    assert {name: (folder / name).read_bytes() for name in ALIKE} == hub.files
    assert model.held() == folder
    hub.asked.clear()
    assert (model.fetch(), len(hub.asked)) == (folder, 1)


def test_a_download_lasts_as_long_as_bytes_come(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1)
    monkeypatch.setattr(hub_room, "STEP_S", 0.2)
    hub.pause_s = 0.07
    began_s = time.monotonic()
    assert HubModel.parse(NAME).fetch().name == NEW
    assert time.monotonic() - began_s > 3 * hub_room.STEP_S


@pytest.fixture(
    params=["offline", "refusing", "dropping packets", "mute", "mute later", "no name", "proxy", "socks"]
)
def no_hub(hub: Hub, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    for name, value in {"HUB_ANSWER_S": 0.3, "PATIENT_S": 0.3, "STEP_S": 0.1}.items():
        monkeypatch.setattr(hub_room, name, value)
    with ExitStack() as open_sockets:
        match request.param:
            case "offline":
                monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
            case "refusing":
                point_at("http://127.0.0.1:9", monkeypatch)
            case "no name":
                point_at("http://hub.invalid", monkeypatch)
            case "mute":
                hub.mute = ("/",)
            case "mute later":
                hub.mute = (f"/api/models/{NAME}/tree", f"/{NAME}")
            case "proxy" | "socks":
                scheme = "prox y" if request.param == "proxy" else "socks5"
                monkeypatch.setenv("HTTP_PROXY", f"{scheme}://127.0.0.1:9")
                huggingface_hub.close_session()
            case _:
                full = open_sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
                for _ in range(4):
                    filling = open_sockets.enter_context(socket.socket())
                    filling.setblocking(False)
                    filling.connect_ex(full.getsockname())
                point_at(f"http://127.0.0.1:{full.getsockname()[1]}", monkeypatch)
        yield hub
    huggingface_hub.close_session()


@pytest.mark.parametrize("missing", ["model.safetensors", "config.json"])
def test_a_snapshot_that_lacks_a_file_is_not_held(hub: Hub, missing: str) -> None:
    hub.holds(without=missing)
    assert HubModel.parse(NAME).held() is None


def test_without_a_hub_what_was_downloaded_is_taken(no_hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    held = no_hub.holds()
    assert HubModel.parse(NAME).fetch() == held
    told = [record.getMessage() for record in caplog.records if record.name == hub_room.LOG.name]
    assert len(told) == (0 if constants.HF_HUB_OFFLINE else 1)
    assert all(f"{NAME}: using the earlier download" in line for line in told)


def test_without_a_hub_what_is_not_here_as_a_whole_is_refused_in_a_sentence(no_hub: Hub) -> None:
    no_hub.holds(without="model.safetensors")
    with pytest.raises(UsageError, match="'someone/toy' is not here as a whole") as refused:
        HubModel.parse(NAME).fetch()
    assert "\n" not in str(refused.value)


def test_what_the_hub_does_not_know_is_told(hub: Hub) -> None:
    with pytest.raises(UsageError, match=r"No model 'nobody/nothing' was found: .* hub answered: .*404"):
        HubModel.parse("nobody/nothing").fetch()


def test_a_file_is_downloaded_with_all_its_parts_and_alone(hub: Hub) -> None:
    first, second = (f"Q8/a-0000{number}-of-00002.gguf" for number in (1, 2))
    hub.files |= {first: b"GGUF", second: b"GGUF2"}
    model = HubModel.parse(f"hf:{NAME}/{first}")
    file = model.fetch()
    assert (file.name, file.read_bytes()) == (Path(first).name, b"GGUF")
    assert sorted(found.name for found in file.parent.iterdir()) == [Path(first).name, Path(second).name]
    assert model.held() == file
    file.with_name(Path(second).name).unlink()
    assert model.held() is None
