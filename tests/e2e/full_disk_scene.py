"""Nodes and a client whose disk is full for a while, in a mount namespace: see `test_hardships`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tests.e2e.nodes import Node, close_all, own_home, run
from tests.e2e.reference import PROMPT, encoded, greedy

NEW_TOKENS: Final = 96
DISK: Final = "24m"
JOIN: Final = ("join", "--threads", "1", "--dtype", "float32", "--emulate", "60/6")
"""With shorter passes a client with memory would use no drafters."""


def asked(verifier: Node) -> "subprocess.CompletedProcess[str]":
    options = ("--initial-peers", verifier.maddr, "--json", "--dtype", "float32")
    done = run("generate", PROMPT, "--max-new-tokens", str(NEW_TOKENS), *options)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert tuple(result["token_ids"]) == greedy(encoded(PROMPT), NEW_TOKENS)
    assert result["swarm"]["drafted"] > 0
    return done


def fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file:
        for piece_bytes in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(piece_bytes))
            except OSError:
                continue


def lines_with(text: str, log: str) -> list[str]:
    return [line for line in log.splitlines() if text in line]


def begin_drafter(name: str, verifier: Node, folder: Path) -> Node:
    place = ("--initial-peers", verifier.maddr, "--identity", str(folder / "key"))
    drafter = (*JOIN, "--role", "drafter", "--model", "zoo:draft-literature", *place)
    return Node.start(name, drafter, folder).wait_ready()


def play(folder: Path, disk: Path) -> None:
    nodes = [Node.start("verifier", (*JOIN, "--role", "verifier", "--model", "zoo:target"), disk)]
    try:
        verifier = nodes[0].wait_ready()
        nodes.append(begin_drafter("drafter", verifier, folder))
        drafter = nodes[-1]
        assert "cannot be written" not in asked(verifier).stderr
        kept = {path: path.read_bytes() for path in disk.rglob("*.json")}
        fill(disk / "ballast")
        for _ in range(2):
            said = lines_with("cannot be written", asked(verifier).stderr)
            assert said and all("No space left on device" in line for line in said), said
            assert len({line.partition(" cannot")[0] for line in said}) == len(said), said
        assert drafter.stop() == 0
        assert verifier.process.poll() is None
        assert {path: path.read_bytes() for path in kept} == kept, "nothing is half written"
        # No temporary files are left.
        assert [path for path in disk.rglob(".*") if path.is_file()] == []
        (disk / "ballast").unlink()
        nodes.append(begin_drafter("again", verifier, folder))
        assert "cannot be written" not in asked(verifier).stderr
        assert nodes[-1].stop() == 0
        assert "cannot be written" not in nodes[-1].log.read_text()
        assert "Traceback" not in "".join(node.log.read_text() for node in nodes)
    finally:
        close_all(nodes)


def main() -> None:
    folder = Path(sys.argv[1])
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(("mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", disk), check=True)
    with own_home(disk):
        play(folder, disk)


if __name__ == "__main__":
    main()
