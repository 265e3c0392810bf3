"""Examining what a test has arranged: options with healthy defaults, and the findings of some of its checks."""

import asyncio
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any, Final

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_node.doctor.checks import DoctorOptions, Facts, checks_of, run_checks
from cosine_node.doctor.finding import CheckStatus, Finding
from cosine_node.doctor.machine import find_daemon
from cosine_node.doctor.swarm import Neighbourhood, look_around
from cosine_node.models.engine_kind import EngineChoice
from cosine_node.serving.discover_service import DiscoverService
from cosine_p2p.storage.identity_file import load_identity
from cosine_protocol.protocols import DISCOVER
from cosine_protocol.records import Role, cell_name, seal_record
from tests.cosine_p2p.plain_swarm import PlainSwarm, account
from tests.cosine_p2p.samples import identity_of, record_of

OTHER_PEER: Final = "12D3KooWT3FTL4gp9kXNHAkxymcJGPWvEkBj7jiZfxmWzvur8f5g"


def doctor_options(folder: Path, **changes: Any) -> DoctorOptions:
    """A machine that nothing is wrong with, a client that asks nobody."""
    fields: dict[str, Any] = {
        "initial_peers": (),
        "relays": (),
        "host_maddrs": ("/ip4/127.0.0.1/tcp/0",),
        "announce_maddrs": (),
        "network": "test",
        "target": "zoo:target",
        "role": None,
        "models": (),
        "identity": folder / "identity",
        "engine": EngineChoice(device="cpu"),
        "config": folder / "config.toml",
        "is_config_named": False,
        "unknown": (),
    }
    return DoctorOptions(**(fields | changes))


def findings(examined: DoctorOptions, about: str) -> list[Finding]:
    """The findings of the checks whose name begins like this, run as the command runs them."""

    async def run() -> list[Finding]:
        facts = Facts(examined)
        try:
            chosen = [check for check in checks_of(facts) if check.what.startswith(about)]
            assert chosen, f"no check is about {about}"
            return await run_checks(chosen, lambda finding: None)
        finally:
            await facts.close()

    return asyncio.run(run())


def failure_of(examined: DoctorOptions, about: str) -> Finding:
    """The one failure these checks find."""
    (failure,) = (finding for finding in findings(examined, about) if finding.status is CheckStatus.FAILURE)
    return failure


@contextmanager
def running_daemon() -> Iterator[str]:
    """The address of a real p2pd, which is all there is of a node to somebody who dials it."""
    file = find_daemon()
    assert file is not None
    # A path under pytest's own folders may be too long for a socket.
    with tempfile.TemporaryDirectory() as folder:
        peer_id = load_identity(Path(folder) / "identity").peer_id
        place = (f"-listen=/unix{folder}/control.sock", "-hostAddrs=/ip4/127.0.0.1/tcp/0")
        command = (str(file), *place, f"-id={folder}/identity")
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                assert process.stdout is not None
                lines = (line.strip() for line in process.stdout)
                yield f"{next(line for line in lines if line.startswith('/ip4/127.'))}/p2p/{peer_id}"
            finally:
                process.kill()


@contextmanager
def running_greeter(server: socket.socket, greeting: bytes) -> Iterator[None]:
    """Says the same to everybody who connects."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection:
                    connection.recv(1024)
                    connection.sendall(greeting)

    thread = Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


TARGET: Final = "zoo:target"
NETWORK: Final = "test"
NOW_S: Final = 1_800_000_000.0


def looked_around(*, roles: Sequence[Role], clock_off_s: float = 0.0, silent: bool = False) -> Neighbourhood:
    """The view that a probe has of one node for each role, whose records an honest peer keeps."""

    async def run() -> Neighbourhood:
        swarm = PlainSwarm()
        records: dict[str, bytes] = {}

        async def read(cell: str) -> Sequence[bytes]:
            return [records[cell]] if cell in records else []

        for number, role in enumerate(roles, start=1):
            record = record_of(identity_of(number), now_s=NOW_S, role=role, target=TARGET)
            record = replace(record, target_digest=record.facts.digest())
            cell = cell_name(network=NETWORK, role=role, target=TARGET, prefix="")
            records[cell] = seal_record(record, identity_of(number), key=cell)
            await swarm.announce(number, None if silent else account(), role=role, target=TARGET)
        await swarm.network.join("keeper").serve(DISCOVER, DiscoverService(read).handle)
        seen = await look_around(swarm, target=TARGET, network=NETWORK, peer_ids=["keeper", "nobody"])
        await swarm.close()
        return replace(seen, now_s=NOW_S + clock_off_s)

    return run_virtual(run())
