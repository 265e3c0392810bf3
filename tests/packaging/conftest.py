"""The wheel as it would be published, and the swarm of compose.yaml as processes of this machine."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, Final

import pytest
import yaml  # type: ignore[import-untyped]

ROOT: Final = Path(__file__).parents[2]
READY_TIMEOUT_S: Final = 100.0
SOURCES: Final = ("lab", "node", "node/train", "protocol", "tui", ".")
PROGRAMS: Final = {"cosine-node": "-m cosine_node", "python": ""}


@dataclass(frozen=True, slots=True)
class Built:
    """What `python -m build` gives."""

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


def compose() -> dict[str, Any]:
    """compose.yaml, with its anchors in place."""
    parsed: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return parsed


@dataclass(slots=True)
class Service:
    """One service of compose.yaml, run here; `events` are the JSON lines on its stdout."""

    name: str
    process: "subprocess.Popen[str]"
    events: "SimpleQueue[dict[str, Any]]" = field(default_factory=SimpleQueue)

    def is_ready(self) -> bool:
        """Wait for its first event; False if it has ended without any."""
        return self.events.get(timeout=READY_TIMEOUT_S).get("event") == "ready"

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.put(json.loads(line))
        self.events.put({})

    def stop(self, timeout_s: float) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True, slots=True)
class Composed:
    """The services of compose.yaml at work, in their order, and what stands for their names and folders."""

    folder: Path
    ports: Mapping[str, int]
    services: dict[str, Service] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return (self.folder / "swarm" / "address").read_text().strip()

    @property
    def gateway(self) -> str:
        return f"http://127.0.0.1:{self.ports['8000']}"

    def here(self, text: str, service: str) -> str:
        """A command of the file on this machine instead of in a container."""
        for container, machine in (("/dns4/bootstrap/", "/dns4/localhost/"), ("0.0.0.0", "127.0.0.1"), ("$$", "$")):
            text = text.replace(container, machine)
        for container, port in self.ports.items():
            text = text.replace(f"/tcp/{container}", f"/tcp/{port}").replace(f":{container}/", f":{port}/")
            for before in ("--port ", "'127.0.0.1', "):
                text = text.replace(f"{before}{container}", f"{before}{port}")
        # Each container has a port 9100 of its own.
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

    def start(self, name: str, errors: IO[bytes]) -> Service:
        command = [self.here(part, name) for part in compose()["services"][name]["command"]]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=self.environment(name), cwd=self.folder
        )
        service = Service(name, process)
        threading.Thread(target=service.read, name=f"events of {name}", daemon=True).start()
        return service


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    """All services, started at once as Docker would, and ready."""
    ports = {name: free_port() for name in ("4001", "8000", "verifier", "drafter")}
    place = Composed(tmp_path_factory.mktemp("composed"), ports)
    (place.folder / "swarm").mkdir()
    for name, module in PROGRAMS.items():
        program = place.folder / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        program.chmod(0o755)
    with ExitStack() as stack:
        for name in compose()["services"]:
            errors = stack.enter_context((place.folder / f"{name}.log").open("wb"))
            place.services[name] = place.start(name, errors)
            stack.callback(place.services[name].close)
        for name in list(place.services):
            if not place.services[name].is_ready():
                # `restart: unless-stopped`: the file's others may not have answered it yet on a busy machine.
                place.services[name] = place.start(
                    name, stack.enter_context((place.folder / f"{name}.log").open("ab"))
                )
                stack.callback(place.services[name].close)
                assert place.services[name].is_ready(), f"{name} is not ready"
        yield place
