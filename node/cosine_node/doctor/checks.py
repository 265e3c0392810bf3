"""What the doctor looks at: which facts are gathered, which of them wait for others, and how long each may take."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from cosine_node.doctor import addresses, disk, installation, machine, model_files, settings, swarm
from cosine_node.doctor.addresses import Dialled, DialOutcome
from cosine_node.doctor.dialling import dial, try_port
from cosine_node.doctor.examination import Check
from cosine_node.doctor.finding import Finding, failure, skipped
from cosine_node.doctor.identity_file import judge_key_file, read_key_file
from cosine_node.doctor.machine import MachineFacts
from cosine_node.doctor.model_files import ModelFiles
from cosine_node.doctor.processes import ProbeFailed, ask_child, in_thread
from cosine_node.doctor.settings import Settings
from cosine_node.doctor.swarm import Neighbourhood
from cosine_p2p.identity_file import default_identity_file
from cosine_protocol.records import Role

NGRAM: Final = "ngram"
HERE_S: Final = 5.0
DIAL_S: Final = 3.0
NETWORK_S: Final = 12.0
PROBE_S: Final = 45.0

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """What is examined: the options `join` would get. `role` is None for a client; `unknown` are names in the
    configuration file that no command has."""

    initial_peers: tuple[str, ...]
    relays: tuple[str, ...]
    host_maddrs: tuple[str, ...]
    announce_maddrs: tuple[str, ...]
    network: str
    target: str
    role: Role | None
    models: tuple[str, ...]
    identity: Path | None
    device: str
    dtype: str
    quantize: str | None
    config: Path
    is_config_named: bool
    unknown: tuple[str, ...]

    @property
    def loaded(self) -> tuple[str, ...]:
        """The models that would be loaded, without the one that has no weights."""
        return tuple(model for model in self.models if model != NGRAM)


class Facts:
    """Facts that several checks ask for; each is gathered once, when first asked for. End them with `close`."""

    def __init__(self, subject: DoctorOptions) -> None:
        self._subject = subject
        self._tasks: dict[str, asyncio.Task[Any]] = {}

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def dialled(self, maddr: str) -> Awaitable[Dialled]:
        return self._once(f"dial {maddr}", lambda: in_thread(partial(dial, maddr, timeout_s=DIAL_S)))

    async def initial(self) -> list[Dialled]:
        return list(await asyncio.gather(*map(self.dialled, self._subject.initial_peers)))

    def model(self, source: str) -> Awaitable[ModelFiles]:
        return self._once(f"model {source}", lambda: in_thread(partial(model_files.read_model, source)))

    async def models(self) -> list[ModelFiles]:
        return list(await asyncio.gather(*map(self.model, self._subject.loaded)))

    def machine(self) -> Awaitable[MachineFacts]:
        return self._once("machine", self._probe_machine)

    def neighbourhood(self) -> Awaitable[Neighbourhood | None]:
        return self._once("swarm", self._probe_swarm)

    def _once(self, name: str, gather: Callable[[], Awaitable[_T]]) -> Awaitable[_T]:
        # One check's deadline must not end what others still wait for.
        task = self._tasks.get(name)
        if task is None:
            task = self._tasks[name] = asyncio.ensure_future(_awaited(gather))
        return cast("Awaitable[_T]", asyncio.shield(task))

    async def _probe_machine(self) -> MachineFacts:
        folders = [str(model.folder) for model in await self.models() if model.folder and model.config]
        answer = await ask_child("cosine_node.doctor.probe_machine", {"folders": folders})
        return MachineFacts.of_answer(answer, free_bytes=machine.free_memory_bytes())

    async def _probe_swarm(self) -> Neighbourhood | None:
        """None if there is nobody to ask."""
        met = [each for each in await self.initial() if _is_worth_joining(each)]
        if not met:
            return None
        question = {
            "initial_peers": [each.address for each in met],
            "peer_ids": [each.peer_id for each in met if each.peer_id],
            "network": self._subject.network,
            "target": self._subject.target,
        }
        answer = await ask_child("cosine_node.doctor.probe_swarm", question)
        return Neighbourhood.of_answer(answer, born_s=[each.born_s for each in met if each.born_s is not None])


async def _awaited(gather: Callable[[], Awaitable[_T]]) -> _T:
    return await gather()


def _is_worth_joining(dialled: Dialled) -> bool:
    is_who_was_meant = dialled.answer is DialOutcome.NODE and f"/p2p/{dialled.peer_id}" in dialled.address
    return is_who_was_meant or dialled.answer is DialOutcome.UNTESTED


def checks_of(subject: DoctorOptions, facts: Facts) -> list[Check]:
    """Everything there is to look at, the quick things first."""
    return [*_here(subject), *_network(subject, facts), *_model(subject, facts), *_swarm(subject, facts)]


def _local(what: str, judge: Callable[[], Finding]) -> Check:
    async def look() -> Sequence[Finding]:
        return [await in_thread(judge)]

    return Check(
        what=what, look=look, deadline_s=HERE_S, if_stuck="A file system does not answer; look at its mounts."
    )


def _here(subject: DoctorOptions) -> list[Check]:
    file = subject.identity or default_identity_file()
    return [
        _local("python", lambda: installation.judge_python(sys.version_info[:3])),
        _local(
            "extras",
            lambda: installation.judge_extras(installation.missing_packages(), needs_node=subject.role is not None),
        ),
        _local("configuration", lambda: settings.judge_settings(_settings(subject), subject.unknown)),
        _local("identity", lambda: judge_key_file(read_key_file(file, is_named=subject.identity is not None))),
        *(_local(f"port {maddr}", partial(_judge_port, maddr)) for maddr in subject.host_maddrs),
    ]


def _settings(subject: DoctorOptions) -> Settings:
    return settings.read_settings(subject.config, is_named=subject.is_config_named)


def _judge_port(maddr: str) -> Finding:
    try:
        return addresses.judge_port(try_port(maddr))
    except ValueError as error:
        fix = "Write --host-maddr like /ip4/0.0.0.0/tcp/4001."
        return failure(f"port {maddr}", f"this is no address: {error}", fix)


def _network(subject: DoctorOptions, facts: Facts) -> list[Check]:
    async def look_at_daemon() -> Sequence[Finding]:
        return [installation.judge_daemon(await installation.try_daemon(installation.find_daemon()))]

    async def look_at(maddr: str, option: str) -> Sequence[Finding]:
        return [addresses.judge_address(await facts.dialled(maddr), option=option)]

    async def look_outward() -> Sequence[Finding]:
        met = await facts.initial()
        place = addresses.ReachOptions(
            host_maddrs=subject.host_maddrs,
            announce_maddrs=subject.announce_maddrs,
            relays=subject.relays,
            paths=tuple((each.our_ip, each.their_ip) for each in met if each.our_ip),
        )
        return [addresses.judge_reachability(place)]

    named = [(maddr, "--initial-peers") for maddr in subject.initial_peers]
    named += [(maddr, "--relay") for maddr in subject.relays]
    return [
        Check(what=installation.DAEMON, look=look_at_daemon, deadline_s=NETWORK_S, if_stuck=installation.REINSTALL),
        *(
            Check(
                what=f"{option} {maddr}",
                look=partial(look_at, maddr, option),
                deadline_s=NETWORK_S,
                if_stuck="The name server does not answer; give an IP address, or look at the network.",
            )
            for maddr, option in named
        ),
        Check(
            what=addresses.REACH,
            look=look_outward,
            deadline_s=NETWORK_S,
            if_stuck="An initial peer's name is not resolved in time; give its IP address.",
        ),
    ]


def _model(subject: DoctorOptions, facts: Facts) -> list[Check]:
    async def look_at_packages() -> Sequence[Finding]:
        if installation.missing_packages()["node"]:
            return [installation.judge_imports({}, {})]
        try:
            found = await facts.machine()
        except ProbeFailed as error:
            fix = "Reinstall: `pip install --force-reinstall torch transformers hivemind`."
            return [failure(installation.PACKAGES, f"loading them failed: {error}", fix)]
        return [
            installation.judge_imports(found.errors, found.versions),
            machine.judge_device(found, device=subject.device),
        ]

    async def look_at_model(source: str) -> Sequence[Finding]:
        is_verifier = subject.role is Role.VERIFIER
        return [model_files.judge_model(await facts.model(source), is_verifier=is_verifier)]

    async def look_at_fit(source: str) -> Sequence[Finding]:
        model = await facts.model(source)
        if not model.config or installation.missing_packages()["node"]:
            return []
        try:
            found = await facts.machine()
        except ProbeFailed:
            return [machine.judge_architecture(source, None)]
        needed = model_files.needed_bytes(
            model,
            dtype=subject.dtype,
            quantize=subject.quantize,
            on_cpu=found.runs_on_cpu(subject.device),
        )
        free, where = found.memory_of(subject.device)
        return [
            machine.judge_architecture(source, found.refusals.get(str(model.folder))),
            model_files.judge_memory(source, needed, free, where=where),
        ]

    async def look_at_disk() -> Sequence[Finding]:
        download = sum(model.remote_bytes or 0 for model in await facts.models())
        folders = await in_thread(disk.written_folders)
        return [disk.judge_folder(folder, download_bytes=download) for folder in folders]

    slow = "Loading PyTorch takes too long; look at the disk it is installed on, then try again."
    hub = "The Hugging Face hub does not answer; fetch the model to a folder and name that with --model."
    loaded = subject.loaded
    return [
        *(
            Check(what=f"model {m}", look=partial(look_at_model, m), deadline_s=NETWORK_S, if_stuck=hub)
            for m in loaded
        ),
        Check(what="disk", look=look_at_disk, deadline_s=NETWORK_S, if_stuck="A disk does not answer; look at it."),
        Check(what=installation.PACKAGES, look=look_at_packages, deadline_s=PROBE_S, if_stuck=slow),
        *(
            Check(what=f"fit of {m}", look=partial(look_at_fit, m), deadline_s=PROBE_S, if_stuck=slow)
            for m in loaded
        ),
    ]


def _swarm(subject: DoctorOptions, facts: Facts) -> list[Check]:
    async def look_at_swarm() -> Sequence[Finding]:
        try:
            seen = await facts.neighbourhood()
        except ProbeFailed as error:
            seen = Neighbourhood(problem=str(error))
        if seen is None:
            none = "no --initial-peers is given" if not subject.initial_peers else "no initial peer can be asked"
            return [skipped(swarm.SWARM, none), skipped(swarm.CLOCK, none)]
        found = swarm.judge_swarm(seen, network=subject.network, target=subject.target, role=subject.role)
        return [*found, swarm.judge_clock(seen), *await _tokenizers(subject, facts, seen)]

    stuck = "The network is joined too slowly; look at the initial peers above, then try again."
    return [Check(what=swarm.SWARM, look=look_at_swarm, deadline_s=PROBE_S, if_stuck=stuck)]


async def _tokenizers(subject: DoctorOptions, facts: Facts, seen: Neighbourhood) -> list[Finding]:
    role = subject.role or Role.DRAFTER
    models = [model for model in await facts.models() if model.folder is not None]
    return [swarm.judge_tokenizer(model.source, model.tokenizer_digest, seen, role=role) for model in models]
