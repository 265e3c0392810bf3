"""The doctor's checks: which facts each needs, how long it may take, and what to do where it does not end."""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from cosine_node.doctor import addresses, disk, machine, model_files, swarm
from cosine_node.doctor import machine as installation
from cosine_node.doctor import model_files as llama
from cosine_node.doctor.addresses import try_port
from cosine_node.doctor.disk import judge_configuration, judge_key_file
from cosine_node.doctor.facts import DoctorOptions, Facts
from cosine_node.doctor.finding import Finding, failure, skipped
from cosine_node.doctor.processes import ProbeFailed, in_thread
from cosine_node.doctor.swarm import Neighbourhood
from cosine_p2p.storage.identity_file import default_identity_file
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role

LOG = logging.getLogger(__name__)

# Deadlines, each a choice: long enough for the slowest healthy machine, short enough that a user still waits.
LOCAL_S: Final = 5.0
"""Of what asks this machine's files and sockets alone."""

NETWORK_S: Final = 12.0
"""Of what asks a few peers, name servers or the hub, each with a timeout of a few seconds of its own."""

PROBE_S: Final = 45.0
"""Of what starts a child process that loads PyTorch or joins the network."""


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
        return await run_checks(checks_of(options, facts), tell)
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


def checks_of(options: DoctorOptions, facts: Facts) -> list[Check]:
    """All checks, the quick ones first."""
    return [
        *_local_checks(options),
        *_network_checks(options, facts),
        *_model_checks(options, facts),
        _swarm_check(options, facts),
    ]


def _local_checks(options: DoctorOptions) -> list[Check]:
    def judge_extras() -> Finding:
        missing = installation.missing_packages()
        return installation.judge_extras(missing, extra=options.extra, needs_node=options.role is not None)

    def judge_config() -> Finding:
        return judge_configuration(options.config, is_named=options.is_config_named, unknown=options.unknown)

    def judge_identity() -> Finding:
        file = options.identity or default_identity_file()
        return judge_key_file(file, is_named=options.identity is not None)

    def judge_port(maddr: str) -> Finding:
        try:
            return addresses.judge_port(try_port(maddr))
        except ValueError as error:
            fix = "Write --host-maddr like /ip4/0.0.0.0/tcp/4001."
            return failure(f"port {maddr}", f"this is no address: {error}", fix)

    judges: dict[str, Callable[[], Finding]] = {
        "python": lambda: installation.judge_python(sys.version_info[:3]),
        "extras": judge_extras,
        "configuration": judge_config,
        "identity": judge_identity,
        **{f"port {maddr}": partial(judge_port, maddr) for maddr in options.host_maddrs},
    }

    async def look(judge: Callable[[], Finding]) -> Sequence[Finding]:
        return [await in_thread(judge)]

    stuck = "A file system does not answer; look at its mounts."
    return [Check(what, partial(look, judge), LOCAL_S, if_stuck=stuck) for what, judge in judges.items()]


def _network_checks(options: DoctorOptions, facts: Facts) -> list[Check]:
    async def look_at_daemon() -> Sequence[Finding]:
        return [await installation.judge_daemon(installation.find_daemon())]

    async def look_at_address(maddr: str, option: str) -> Sequence[Finding]:
        return [addresses.judge_address(await facts.dialled(maddr), option=option)]

    async def look_outward() -> Sequence[Finding]:
        reach = addresses.ReachOptions(
            host_maddrs=options.host_maddrs,
            announce_maddrs=options.announce_maddrs,
            relays=options.relays,
            paths=tuple((each.our_ip, each.their_ip) for each in await facts.initial_peers() if each.our_ip),
        )
        return [addresses.judge_reachability(reach)]

    named = [(maddr, "--initial-peers") for maddr in options.initial_peers]
    named += [(maddr, "--relay") for maddr in options.relays]
    no_name = "The name server does not answer; give an IP address, or look at the network."
    no_peer = "An initial peer's name is not resolved in time; give its IP address."
    return [
        Check(installation.DAEMON, look_at_daemon, NETWORK_S, if_stuck=installation.REINSTALL),
        *(
            Check(f"{option} {maddr}", partial(look_at_address, maddr, option), NETWORK_S, if_stuck=no_name)
            for maddr, option in named
        ),
        Check(addresses.REACH, look_outward, NETWORK_S, if_stuck=no_peer),
    ]


def _model_checks(options: DoctorOptions, facts: Facts) -> list[Check]:
    async def look_at_packages() -> Sequence[Finding]:
        if installation.missing_packages()[options.extra]:
            return [installation.judge_imports({}, {})]
        try:
            found = await facts.machine()
        except ProbeFailed as error:
            packages = " ".join(installation.EXTRAS[options.extra])
            fix = f"Reinstall: `pip install --force-reinstall --no-deps {packages}`."
            return [failure(installation.PACKAGES, f"loading them failed: {error}", fix)]
        imports, device = installation.judge_imports(found.errors, found.versions), options.engine.device
        # Where llama.cpp runs all models, it tells what devices it has.
        return [imports] if options.extra == "llama" else [imports, machine.judge_device(found, device=device)]

    async def look_at_model(source: str) -> Sequence[Finding]:
        is_verifier = options.role is Role.VERIFIER
        return [model_files.judge_model(await facts.model(source), is_verifier=is_verifier)]

    async def look_at_disk() -> Sequence[Finding]:
        download_bytes = sum(model.remote_bytes or 0 for model in await facts.models())
        folders = await in_thread(disk.written_folders)
        return [disk.judge_folder(folder, download_bytes=download_bytes) for folder in folders]

    slow = "Loading PyTorch takes too long; look at the disk it is installed on, then try again."
    hub = "The Hugging Face hub does not answer; fetch the model to a folder and name that with --model."
    models, fit = options.loaded_models, partial(_look_at_fit, options, facts)
    return [
        *(Check(f"model {m}", partial(look_at_model, m), NETWORK_S, if_stuck=hub) for m in models),
        Check("disk", look_at_disk, NETWORK_S, if_stuck="A disk does not answer; look at it."),
        Check(installation.PACKAGES, look_at_packages, PROBE_S, if_stuck=slow),
        *(Check(f"fit of {m}", partial(fit, m), PROBE_S, if_stuck=slow) for m in models),
    ]


async def _look_at_fit(options: DoctorOptions, facts: Facts, source: str) -> Sequence[Finding]:
    """Judge whether the engine can run a model on this machine."""
    model, chosen = await facts.model(source), options.engine
    found: machine.MachineFacts | None = None
    if not installation.missing_packages()[options.extra]:
        with suppress(ProbeFailed):
            found = await facts.machine()
    base_bytes = found.base_bytes if found else 0
    if by_llama := await in_thread(partial(llama.look_at_llama, model, chosen, base_bytes=base_bytes)):
        return by_llama
    if not model.config or installation.missing_packages()["node"]:
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


def _swarm_check(options: DoctorOptions, facts: Facts) -> Check:
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
