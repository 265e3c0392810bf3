"""One bootstrap node, one verifier and two drafters, started once for all end-to-end tests.

Verifiers that some tests kill are started once, too, and only where one of these tests runs.
"""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.nodes import Node, open_nodes, own_home, starting

TARGET: Final = "zoo:target"
DRAFTERS: Final = {"code": "zoo:draft-code", "math": "ngram"}
"""Models by expertise. Those without weights start at once."""
EMULATED: Final = "60/6@10"


@dataclass(frozen=True, slots=True)
class Swarm:
    """The shared nodes, which no test may break."""

    boot: Node
    verifier: Node
    drafters: tuple[Node, ...]
    folder: Path
    target: str = TARGET
    dtype: str | None = "float32"

    @property
    def peers(self) -> tuple[str, str]:
        return "--initial-peers", self.boot.maddr


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the last log lines of all nodes to the report of a failed test."""
    report = yield
    if report.failed:
        report.sections += [("a node", node.told()) for node in open_nodes()]
    return report


@pytest.fixture(scope="package", autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep children and clients of this process away from the user's folders."""
    home = tmp_path_factory.mktemp("home")
    with own_home(home), pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield home


@contextmanager
def swarm_in(
    folder: Path,
    *,
    target: str = TARGET,
    dtype: str | None = "float32",
    drafters: Mapping[str, str] = DRAFTERS,
) -> Iterator[Swarm]:
    with starting(folder) as start:
        boot = start("boot", "bootstrap").wait_ready()
        join = ["join", "--threads", "1", "--initial-peers", boot.maddr]
        join += ["--dtype", dtype] if dtype else []
        verifier = start("verifier", *join, "--role", "verifier", "--model", target)
        # Drafters find the kernels that it has compiled.
        verifier.wait_said('"loaded"')
        drafting = tuple(
            start(name, *join, "--role", "drafter", "--model", model, "--expertise", name)
            for name, model in drafters.items()
        )
        for node in (verifier, *drafting):
            node.wait_ready()
        yield Swarm(boot, verifier, drafting, folder, target, dtype)


@pytest.fixture(scope="package")
def swarm(_own_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    with swarm_in(tmp_path_factory.mktemp("nodes")) as nodes:
        yield nodes
