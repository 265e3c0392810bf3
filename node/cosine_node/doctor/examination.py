"""The examination program: it reads a `JoinPlan` from stdin and writes one JSON object per line.

An object is a finding, a new step, or a sentence about the current work. Output of libraries goes to stderr.
"""

import asyncio
import json
import logging
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from cosine_engine import zoo
from cosine_engine.load_options import EngineKind
from cosine_engine.models.engine_kind import has_files, kind_for
from cosine_node.doctor import machine, packages, swarm
from cosine_node.doctor.finding import CheckStatus, Finding, failure, skipped
from cosine_node.doctor.swarm import Neighbourhood
from cosine_node.serving.options import JoinPlan, RoleOptions
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.errors import UsageError
from cosine_terminal.events import STAGES
from cosine_terminal.packages import EXTRAS, missing_packages

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the examination.

    within_s: Timeout for its next output.
    mend: What to do after a timeout or if the process ends.
    """

    what: str
    within_s: float
    mend: str


DISK: Final = "A file system does not answer; look at its mounts."
LIBRARIES: Final = "Look at the disk they are installed on, or reinstall them: `pip install --force-reinstall {}`."
HUB: Final = "The Hugging Face hub does not answer; fetch the model to a folder and name that with --model."
NETWORK: Final = "Look at the name server and the initial peers, then try again."


class Examination:
    """Examines this machine for a plan. `say` takes a sentence about the current work."""

    def __init__(self, plan: JoinPlan, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._say = say
        self._network = plan.network
        self._seen = Neighbourhood()
        self._reached: list[str] = []
        self._folders: dict[str, Path] = {}
        self._loaded: list[object] = []
        self._has_packages = True
        self._has_card = False

    def steps(self) -> Iterator[tuple[Step, Callable[[], Iterator[Finding]]]]:
        """All steps in order, each with the function that yields its findings."""
        yield Step("extras", 5.0, DISK), self._extras
        yield Step(machine.IDENTITY, 5.0, DISK), self._own_place
        if self._plan.nodes:
            names = " ".join(EXTRAS[self.extra])
            yield Step(packages.PACKAGES, 90.0, LIBRARIES.format(names)), self._packages
        yield Step("models", 60.0, HUB), self._models
        yield Step(swarm.DAEMON, 60.0, NETWORK), lambda: _awaited(self._peers)
        yield Step(swarm.SWARM, 60.0, NETWORK), lambda: _awaited(self._swarm)
        for node in self._plan.nodes:
            yield Step(f"{node.role} {node.source.model}", 600.0, machine.SMALLER), partial(self._try, node)

    @property
    def extra(self) -> str:
        """The extra that loads the models: `llama` if llama.cpp runs all of them, else `node`."""
        sources = [node.source for node in self._plan.nodes if has_files(node.source.model)]
        try:
            kinds = {kind_for(source.engine, zoo.resolve(source.model)) for source in sources}
        except UsageError:
            # The check of the model reports an unknown name.
            return "node"
        return "llama" if kinds == {EngineKind.LLAMA} else "node"

    def _extras(self) -> Iterator[Finding]:
        missing, needs_node = missing_packages(), bool(self._plan.nodes)
        self._has_packages = not missing[self.extra]
        yield packages.judge_extras(missing, extra=self.extra, needs_node=needs_node)

    def _own_place(self) -> Iterator[Finding]:
        yield machine.judge_key_file(self._network.identity_file)
        yield from map(machine.judge_port, self._network.host_maddrs)

    def _packages(self) -> Iterator[Finding]:
        if not self._has_packages:
            return
        for finding in packages.look_at_imports(self.extra):
            self._has_packages &= finding.status is CheckStatus.OK
            yield finding
        if self._has_packages and self.extra == "node":
            gpus = machine.Gpus.find()
            self._has_card = bool(gpus.devices)
            yield machine.judge_device(gpus, device=self._plan.nodes[0].source.engine.device)

    def _models(self) -> Iterator[Finding]:
        download_bytes = 0
        if self._plan.nodes and self._has_packages:
            from cosine_node.doctor.models import find_model, names_of

            parts = any(node.is_in_parts for node in self._plan.nodes)
            for name in dict.fromkeys(name for node in self._plan.nodes for name in names_of(node)):
                folder, more_bytes, finding = find_model(name, is_in_parts=parts)
                download_bytes += more_bytes
                if folder is not None:
                    self._folders[name] = folder
                yield finding
        yield from machine.judge_folders(download_bytes=download_bytes)

    async def _peers(self) -> list[Finding]:
        found = [finding async for finding in swarm.look_at_peers(self._network)]
        good = {finding.what for finding in found if finding.status in (CheckStatus.OK, CheckStatus.SKIPPED)}
        self._reached = [maddr for maddr in self._network.initial_peers if f"--initial-peers {maddr}" in good]
        if not self._network.initial_peers:
            neighbours, finding = await swarm.look_in_local_network(self._network)
            self._reached = list(neighbours)
            found.append(finding)
        return found

    async def _swarm(self) -> list[Finding]:
        role = self._plan.nodes[0].role if self._plan.nodes else None
        self._seen, found = await swarm.look_at_swarm(
            self._network, target=self._plan.target, role=role, initial_peers=self._reached
        )
        return found

    def _try(self, node: RoleOptions) -> Iterator[Finding]:
        from cosine_node.doctor.models import names_of, try_node

        what = f"{node.role} {node.source.model}"
        if (folder := self._folders.get(node.source.model)) is not None:
            tokenizer = TokenizerFiles.read(folder)
            digest = None if tokenizer is None else tokenizer.digest
            yield swarm.judge_tokenizer(node.source.model, digest, self._seen, role=node.role)
        if not self._has_packages or not self._folders.keys() >= {*names_of(node)}:
            yield skipped(what, "not tried: packages or models are missing")
            return

        def tell(event: str, fields: dict[str, object]) -> None:
            if event in STAGES:
                self._say(STAGES[event].format(**fields))

        yield from try_node(node, tell, self._loaded, has_card=self._has_card)


def _awaited(look: Callable[[], Any]) -> Iterator[Finding]:
    yield from asyncio.run(look())


def main() -> None:
    verbose, plan = pickle.load(sys.stdin.buffer)
    logging.basicConfig(level=logging.DEBUG if verbose else logging.WARNING)
    out, sys.stdout = sys.stdout, sys.stderr

    def write(**told: object) -> None:
        out.write(json.dumps(told) + "\n")
        out.flush()

    for step, look in Examination(plan, lambda sentence: write(said=sentence)).steps():
        write(step=asdict(step))
        try:
            for finding in look():
                write(finding=asdict(finding))
        except Exception as error:
            LOG.debug("the check %s failed", step.what, exc_info=True)
            fix = "Run `cosine-node --verbose doctor` and report what it prints."
            found = f"the check itself failed: {type(error).__name__}: {error}"
            write(finding=asdict(failure(step.what, found, fix)))
    write(is_done=True)


if __name__ == "__main__":
    main()
