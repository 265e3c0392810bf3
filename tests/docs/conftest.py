"""A swarm of embedded models with a gateway for the documented commands."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from cosine_engine import zoo
from tests.docs.exemptions import ADDRESS, FREE_PORT, GATEWAY, METRICS, SUBSTITUTIONS, TOKENIZER
from tests.docs.pages import ROOT, blocks_of
from tests.docs.processes import SOURCES, write_programs
from tests.e2e.nodes import HOST, free_port, starting

# One thread a process: they share the machine with the swarm.
QUIET: Final = {"HF_HUB_OFFLINE": "1", "COSINE_THREADS": "1", "OMP_NUM_THREADS": "1", "COSINE_PORT": "0"}


HOMES: Final = ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HOME")


@dataclass(frozen=True, slots=True)
class Place:
    folder: Path
    environment: dict[str, str]
    names: dict[str, str]

    def real(self, text: str) -> str:
        """A command or program with the addresses of this swarm."""
        for substitution in SUBSTITUTIONS:
            text = substitution.apply(text)
        for name, here in self.names.items():
            text = text.replace(name, here)
        return text

    def folder_of(self, page: Path) -> Path:
        """A folder for each page, with the files that its commands name."""
        folder = self.folder / page.stem
        folder.mkdir(exist_ok=True)
        (folder / "question.txt").write_text("What is 3 plus 4?\n")
        scenarios = [block.text for block in blocks_of(ROOT / "lab" / "README.md") if block.language == "toml"]
        (folder / "mine.toml").write_text(scenarios[0])
        return folder


@pytest.fixture(scope="package")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("documentation")
    programs = folder / "bin"
    programs.mkdir()
    write_programs(programs)
    # Nothing is read from or left in the user's own folders.
    homes = {name: str(tmp_path_factory.mktemp(name.lower())) for name in HOMES}
    environment = {**os.environ, **QUIET, **homes, "COSINE_HOST_MADDR": HOST}
    environment["PATH"] = os.pathsep.join((str(programs), environment["PATH"]))
    environment["PYTHONPATH"] = os.pathsep.join(str(ROOT / source) for source in SOURCES)
    with starting(folder, **environment) as start:
        boot = start("boot", "bootstrap").wait_ready()
        metrics = str(free_port())
        peers = ("--initial-peers", boot.maddr)
        verifier = start("verifier", "join", "--role", "verifier", "--metrics-port", metrics, *peers)
        drafter = start("drafter", "join", "--role", "drafter", "--model", "zoo:draft-code", *peers)
        gateway = start("gateway", "serve", *peers)
        for node in (verifier, drafter, gateway):
            node.wait_ready()
        names = {
            ADDRESS: boot.maddr,
            GATEWAY: gateway.ready["url"],
            METRICS: f"http://127.0.0.1:{metrics}",
            FREE_PORT: str(free_port()),
            TOKENIZER: str(zoo.tokenizer_folder()),
        }
        yield Place(folder, environment, names)
