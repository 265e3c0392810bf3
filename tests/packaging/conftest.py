"""The built wheel, and the swarm of compose.yaml as local processes."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]

from tests.docs.processes import SOURCES, Server, write_programs
from tests.e2e.nodes import free_port

ROOT: Final = Path(__file__).parents[2]
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: Final[dict[str, Any]] = COMPOSE["services"]


@dataclass(frozen=True, slots=True)
class Built:
    wheel: Path
    sdist: Path


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    if find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed; `make install` brings it with the extra dev")
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        (sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Built(wheel, sdist)


@dataclass(frozen=True, slots=True)
class Composed:
    """The running services of compose.yaml, with their folders and ports."""

    folder: Path
    ports: Mapping[str, int]
    services: dict[str, Server] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return (self.folder / "swarm" / "address").read_text().strip()

    @property
    def gateway(self) -> str:
        return f"http://127.0.0.1:{self.ports['8000']}"

    def here(self, text: str, service: str) -> str:
        """Adapt a command for this machine instead of a container."""
        for container, machine in (("/dns4/bootstrap/", "/dns4/localhost/"), ("0.0.0.0", "127.0.0.1"), ("$$", "$")):
            text = text.replace(container, machine)
        for container, port in self.ports.items():
            text = text.replace(f"/tcp/{container}", f"/tcp/{port}").replace(f":{container}/", f":{port}/")
            for before in ("--port ", "'127.0.0.1', "):
                text = text.replace(f"{before}{container}", f"{before}{port}")
        # Each container has a separate port 9100.
        text = text.replace("9100", str(self.ports.get(service)))
        return text.replace("/swarm/", f"{self.folder}/swarm/")

    def environment(self, service: str) -> dict[str, str]:
        own = {name: str(self.folder / service / name.lower()) for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME")}
        paths = os.pathsep.join(str(ROOT / source) for source in SOURCES)
        programs = os.pathsep.join((str(self.folder), os.environ["PATH"]))
        quiet = {"HF_HUB_OFFLINE": "1", "COSINE_THREADS": "1", "COSINE_LOG_FORMAT": "json", "NO_COLOR": "1"}
        # Nodes that say nothing of it listen on loopback alone.
        place = {"PYTHONPATH": paths, "PATH": programs, "COSINE_HOST_MADDR": "/ip4/127.0.0.1/tcp/0"}
        return {**os.environ, **own, **quiet, **place}

    def start(self, name: str) -> Server:
        command = [self.here(part, name) for part in SERVICES[name]["command"]]
        return Server(command, self.folder / f"{name}.log", self.environment(name))


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    ports = {name: free_port() for name in ("4001", "8000", "verifier", "drafter")}
    place = Composed(tmp_path_factory.mktemp("composed"), ports)
    (place.folder / "swarm").mkdir()
    write_programs(place.folder)
    with ExitStack() as stack:
        for name in SERVICES:
            place.services[name] = place.start(name)
            stack.callback(place.services[name].close)
        for name, service in place.services.items():
            if service.first_event().get("event") != "ready":
                # `restart: unless-stopped`: the file's others may not have answered it yet on a busy machine.
                place.services[name] = again = place.start(name)
                stack.callback(again.close)
                assert again.first_event().get("event") == "ready", f"{name} is not ready"
        yield place
