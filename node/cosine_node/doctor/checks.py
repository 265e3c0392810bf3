"""The doctor's checks, and the facts that several of them ask for, each gathered once.

Every check has a deadline, and says what to do where it does not end. Deadlines are long enough for the slowest
healthy machine, and short enough that a user still waits.
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from cosine_node import zoo
from cosine_node.doctor import addresses, machine, model_files, swarm
from cosine_node.doctor.addresses import Dialled, DialOutcome, dial
from cosine_node.doctor.finding import Finding, failure, skipped
from cosine_node.doctor.machine import MachineFacts
from cosine_node.doctor.model_files import ModelFiles, read_model
from cosine_node.doctor.processes import ProbeFailed, ask_child, in_thread
from cosine_node.doctor.swarm import Neighbourhood
from cosine_node.engine.pool_size import free_memory_bytes
from cosine_node.models.engine_kind import EngineChoice, EngineKind
from cosine_p2p.storage.identity_file import default_identity_file
from cosine_p2p.transport.addresses import Reach, reach_of
from cosine_p2p.transport.hosts import local_hosts
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role

LOG = logging.getLogger(__name__)

NGRAM: Final = "ngram"
"""The model of `join` that has no files: it is counted from the text."""

LOCAL_S: Final = 5.0
"""Of what asks this machine's files and sockets alone."""
NETWORK_S: Final = 12.0
"""Of what asks a few peers, name servers or the hub, each with a timeout of a few seconds of its own."""
PROBE_S: Final = 45.0
"""Of what starts a child process that loads PyTorch or joins the network."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """The options that `join` would get.

    `role` is None for a client. In a private swarm `network` is its id. `unknown` are the names in the
    configuration file that no command has.
    """

    initial_peers: tuple[str, ...]
    relays: tuple[str, ...]
    host_maddrs: tuple[str, ...]
    announce_maddrs: tuple[str, ...]
    network: str
    target: str
    role: Role | None
    models: tuple[str, ...]
    identity: Path | None
    engine: EngineChoice
    config: Path
    is_config_named: bool
    unknown: tuple[str, ...]
    swarm_file: Path | None = None

    @property
    def extra(self) -> str:
        """The extra whose packages load the models: `llama` where llama.cpp runs all of them, else `node`."""

        def kind_of(model: str) -> EngineKind:
            try:
                return self.engine.kind_for(zoo.resolve(model))
            except UsageError:
                # Other checks tell of a name that means nothing.
                return EngineKind.TORCH

        return "llama" if {*map(kind_of, self.loaded_models)} == {EngineKind.LLAMA} else "node"

    @property
    def loaded_models(self) -> tuple[str, ...]:
        """The models that would be loaded, without the one that has no weights."""
        return tuple(model for model in self.models if model != NGRAM)


class Facts:
    """Facts that several checks ask for; each is gathered once, when first asked for. End them with `close`."""

    def __init__(self, options: DoctorOptions) -> None:
        self.options = options
        self._tasks: dict[str, asyncio.Task[Any]] = {}

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def dialled(self, maddr: str) -> Awaitable[Dialled]:
        # A node far away connects within a second, and each of the few steps of a dial gets three.
        return self._once(f"dial {maddr}", lambda: in_thread(partial(dial, maddr, timeout_s=3.0)))

    async def initial_peers(self) -> list[Dialled]:
        return list(await asyncio.gather(*map(self.dialled, self.options.initial_peers)))

    def model(self, source: str) -> Awaitable[ModelFiles]:
        return self._once(f"model {source}", lambda: in_thread(partial(read_model, source)))

    async def models(self) -> list[ModelFiles]:
        return list(await asyncio.gather(*map(self.model, self.options.loaded_models)))

    def machine(self) -> Awaitable[MachineFacts]:
        """Raises `ProbeFailed`."""

        async def probe() -> MachineFacts:
            folders = [str(model.folder) for model in await self.models() if model.folder and model.config]
            engine = self.options.engine
            question: dict[str, Any] = {"folders": folders, "dtype": engine.dtype, "device": engine.device}
            question["packages"] = machine.EXTRAS[self.options.extra]
            answer = await ask_child("cosine_node.doctor.machine", question)
            return MachineFacts.of_answer(answer, free_bytes=free_memory_bytes() or 0)

        return self._once("machine", probe)

    def neighbourhood(self) -> Awaitable[Neighbourhood | None]:
        """None if there is nobody to ask. Raises `ProbeFailed`."""

        async def probe() -> Neighbourhood | None:
            # Those who proved to be the peer that was meant, and those who can only be reached by joining.
            reached = [
                each
                for each in await self.initial_peers()
                if (each.answer is DialOutcome.NODE and f"/p2p/{each.peer_id}" in each.address)
                or each.answer is DialOutcome.UNTESTED
            ]
            if not reached:
                return None
            question = {
                "initial_peers": [each.address for each in reached],
                "peer_ids": [each.peer_id for each in reached if each.peer_id],
                "network": self.options.network,
                "swarm_file": None if self.options.swarm_file is None else str(self.options.swarm_file),
                "identity_file": None if self.options.identity is None else str(self.options.identity),
                "target": self.options.target,
            }
            answer = await ask_child("cosine_node.doctor.swarm", question)
            born_s = [each.born_s for each in reached if each.born_s is not None]
            return Neighbourhood.of_answer(answer, born_s=born_s)

        return self._once("swarm", probe)

    def _once(self, name: str, gather: Callable[[], Awaitable[_T]]) -> Awaitable[_T]:
        task = self._tasks.get(name)
        if task is None:
            task = self._tasks[name] = asyncio.ensure_future(gather())
        # The deadline of one check must not end what others still wait for.
        return cast("Awaitable[_T]", asyncio.shield(task))


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at. `if_stuck` says what to do if no answer comes within `deadline_s`."""

    what: str
    look: Callable[[], Awaitable[Sequence[Finding]]]
    deadline_s: float
    if_stuck: str = field(kw_only=True)


async def examine(options: DoctorOptions, tell: Callable[[Finding], None]) -> list[Finding]:
    """Run all checks; `tell` gets each finding as soon as it is there."""
    facts = Facts(options)
    try:
        return await run_checks(checks_of(facts), tell)
    finally:
        await facts.close()


async def run_checks(checks: Sequence[Check], tell: Callable[[Finding], None]) -> list[Finding]:
    """Run checks side by side, each with its deadline, and return all findings in the order of the checks.

    Never raises for a check: one that fails or does not end is a finding too.
    """

    async def run(check: Check) -> list[Finding]:
        try:
            async with asyncio.timeout(check.deadline_s):
                findings = list(await check.look())
        except TimeoutError:
            findings = [failure(check.what, f"no answer within {check.deadline_s:g} s", check.if_stuck)]
        except Exception as error:
            LOG.debug("the check %s failed", check.what, exc_info=True)
            found = f"the check itself failed: {type(error).__name__}: {error}"
            fix = "Run `cosine-node --verbose doctor` and report what it prints."
            findings = [failure(check.what, found, fix)]
        for finding in findings:
            tell(finding)
        return findings

    return [finding for findings in await asyncio.gather(*map(run, checks)) for finding in findings]


def checks_of(facts: Facts) -> list[Check]:
    """All checks, the quick ones first."""
    options = facts.options
    judges: dict[str, Callable[[], Finding]] = {
        "python": lambda: machine.judge_python(sys.version_info[:3]),
        "extras": lambda: machine.judge_extras(
            machine.missing_packages(), extra=options.extra, needs_node=options.role is not None
        ),
        "configuration": lambda: machine.judge_configuration(
            options.config, is_named=options.is_config_named, unknown=options.unknown
        ),
        "identity": lambda: machine.judge_key_file(
            options.identity or default_identity_file(), is_named=options.identity is not None
        ),
        **{f"port {maddr}": partial(addresses.judge_port, maddr) for maddr in options.host_maddrs},
    }

    async def look(judge: Callable[[], Finding]) -> Sequence[Finding]:
        return [await in_thread(judge)]

    stuck = "A file system does not answer; look at its mounts."
    local = [Check(what, partial(look, judge), LOCAL_S, if_stuck=stuck) for what, judge in judges.items()]
    return [*local, *_network_checks(facts), *_model_checks(facts), _swarm_check(facts)]


def _network_checks(facts: Facts) -> list[Check]:
    options = facts.options

    async def look_at_daemon() -> Sequence[Finding]:
        return [await machine.judge_daemon(machine.find_daemon())]

    async def look_at_address(maddr: str, option: str) -> Sequence[Finding]:
        return [addresses.judge_address(await facts.dialled(maddr), option=option)]

    async def look_outward() -> Sequence[Finding]:
        reachability = addresses.judge_reachability(
            host_maddrs=options.host_maddrs,
            announce_maddrs=options.announce_maddrs,
            relays=options.relays,
            paths=[(each.our_ip, each.their_ip) for each in await facts.initial_peers() if each.our_ip],
            local=[host for host in local_hosts(()) if reach_of(host) is not Reach.NOBODY],
        )
        return [reachability]

    named = [(maddr, "--initial-peers") for maddr in options.initial_peers]
    named += [(maddr, "--relay") for maddr in options.relays]
    no_name = "The name server does not answer; give an IP address, or look at the network."
    no_peer = "An initial peer's name is not resolved in time; give its IP address."
    return [
        Check(machine.DAEMON, look_at_daemon, NETWORK_S, if_stuck=machine.REINSTALL),
        *(
            Check(f"{option} {maddr}", partial(look_at_address, maddr, option), NETWORK_S, if_stuck=no_name)
            for maddr, option in named
        ),
        Check(addresses.REACH, look_outward, NETWORK_S, if_stuck=no_peer),
    ]


def _model_checks(facts: Facts) -> list[Check]:
    options = facts.options

    async def look_at_packages() -> Sequence[Finding]:
        if machine.missing_packages()[options.extra]:
            return [machine.judge_imports({}, {})]
        try:
            found = await facts.machine()
        except ProbeFailed as error:
            packages = " ".join(machine.EXTRAS[options.extra])
            fix = f"Reinstall: `pip install --force-reinstall --no-deps {packages}`."
            return [failure(machine.PACKAGES, f"loading them failed: {error}", fix)]
        imports, device = machine.judge_imports(found.errors, found.versions), options.engine.device
        # Where llama.cpp runs all models, it tells what devices it has.
        return [imports] if options.extra == "llama" else [imports, machine.judge_device(found, device=device)]

    async def look_at_model(source: str) -> Sequence[Finding]:
        is_verifier = options.role is Role.VERIFIER
        return [model_files.judge_model(await facts.model(source), is_verifier=is_verifier)]

    async def look_at_disk() -> Sequence[Finding]:
        download_bytes = sum(model.remote_bytes or 0 for model in await facts.models())
        return await in_thread(partial(machine.judge_folders, download_bytes=download_bytes))

    slow = "Loading PyTorch takes too long; look at the disk it is installed on, then try again."
    hub = "The Hugging Face hub does not answer; fetch the model to a folder and name that with --model."
    models = options.loaded_models
    return [
        *(Check(f"model {m}", partial(look_at_model, m), NETWORK_S, if_stuck=hub) for m in models),
        Check("disk", look_at_disk, NETWORK_S, if_stuck="A disk does not answer; look at it."),
        Check(machine.PACKAGES, look_at_packages, PROBE_S, if_stuck=slow),
        *(Check(f"fit of {m}", partial(_look_at_fit, facts, m), PROBE_S, if_stuck=slow) for m in models),
    ]


async def _look_at_fit(facts: Facts, source: str) -> Sequence[Finding]:
    """Judge whether the engine can run a model on this machine."""
    model, chosen = await facts.model(source), facts.options.engine
    found: MachineFacts | None = None
    if not machine.missing_packages()[facts.options.extra]:
        with suppress(ProbeFailed):
            found = await facts.machine()
    base_bytes = found.base_bytes if found else 0
    if by_llama := await in_thread(partial(model_files.look_at_llama, model, chosen, base_bytes=base_bytes)):
        return by_llama
    if not model.config or machine.missing_packages()["node"]:
        return []
    if found is None:
        return [machine.judge_architecture(source, None)]
    on_cpu = found.runs_on_cpu(chosen.device)
    free_bytes, where = found.memory_of(chosen.device)
    engine = found.engines.get(str(model.folder))
    architecture = machine.judge_architecture(source, engine)
    try:
        memory = model_files.estimate_memory(
            model,
            dtype=chosen.dtype,
            quantize=chosen.quantize,
            on_cpu=on_cpu,
            base_bytes=base_bytes if on_cpu else 0,
            free_bytes=free_bytes,
            pool_size=chosen.pool_size,
            engine=engine or machine.EngineFacts(),
        )
    except UsageError as error:
        fix = "Free memory, or choose a smaller --model, --dtype bfloat16 or more --kv-memory."
        return [architecture, failure(f"memory for {source}", str(error), fix)]
    return [architecture, model_files.judge_memory(source, memory, free_bytes, where=where)]


def _swarm_check(facts: Facts) -> Check:
    options = facts.options

    async def look_at_swarm() -> Sequence[Finding]:
        try:
            seen = await facts.neighbourhood()
        except ProbeFailed as error:
            seen = Neighbourhood(problem=str(error))
        if seen is None:
            nobody = "no --initial-peers is given" if not options.initial_peers else "no initial peer can be asked"
            return [skipped(swarm.SWARM, nobody), skipped(swarm.CLOCK, nobody)]
        role = options.role or Role.DRAFTER
        return [
            *swarm.judge_swarm(seen, network=options.network, target=options.target, role=options.role),
            swarm.judge_clock(seen),
            *(
                swarm.judge_tokenizer(model.source, model.tokenizer_digest, seen, role=role)
                for model in await facts.models()
                if model.folder is not None
            ),
        ]

    slow = "The network is joined too slowly; look at the initial peers above, then try again."
    return Check(swarm.SWARM, look_at_swarm, PROBE_S, if_stuck=slow)
