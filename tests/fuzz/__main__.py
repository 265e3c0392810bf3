"""Fuzzes targets by coverage with atheris: `python -m tests.fuzz --seconds 60 message tree`.

Without names all targets run, each in a separate process. Inputs with new coverage are kept in the folder
`--found`, with which the next run continues, and so is an input that fails, which belongs in `regressions/` once it
is fixed.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Final

import atheris

PACKAGES: Final = ["cosine_protocol", "cosine_p2p", "cosine_engine", "cosine_gateway", "cosine_node"]
with atheris.instrument_imports(include=PACKAGES):
    from tests.fuzz.target import FuzzTarget, kept, regressions
    from tests.fuzz.targets import TARGETS

TIMEOUT_S: Final = 20
"""The limit of one input on any machine; they take milliseconds."""
MEMORY_MB: Final = 3072
"""The limit of the process, which needs some hundred MB."""
BYTEWISE: Final = 0.3
"""The share of inputs that are changed as bytes if a target has other mutations."""


def main() -> int:
    """0 if nothing failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=0, help="for each target, instead of the runs of a test")
    parser.add_argument("--runs", type=int, default=0, help="of each target, instead of its own number")
    parser.add_argument("--part", type=int, default=1, help="2 for half of each target's runs, and so on")
    parser.add_argument("--seed", type=int, default=1, help="the same seed and runs give the same inputs")
    parser.add_argument(
        "--found", type=Path, help="where inputs and what libFuzzer says go, by default a new folder"
    )
    options = parser.parse_args()
    found = options.found or Path(tempfile.mkdtemp(prefix="cosine-fuzz-"))
    failed = []
    for name in options.names or TARGETS:
        folder = found / name
        folder.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate([*TARGETS[name].seeds(), *kept(name), *regressions().values()]):
            (folder / f"{number:05}").write_bytes(data)
        runs = f"-runs={options.runs or TARGETS[name].runs // options.part}"
        length = f"-max_total_time={options.seconds}" if options.seconds else runs
        said = found / f"{name}.log"
        # libFuzzer ends the process in which it runs.
        child = os.fork()
        if not child:
            os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), sys.stderr.fileno())
            fuzz(
                name, TARGETS[name], folder, [length, f"-seed={options.seed}", f"-artifact_prefix={found}/{name}-"]
            )
        _, status, used = os.wait4(child, 0)
        used_s = used.ru_utime + used.ru_stime
        print(f"{name}: {used_s:.1f} s of a processor", flush=True)  # noqa: T201  # for people
        if os.waitstatus_to_exitcode(status):
            failed.append(name)
    print(f"inputs that fail: {found}" if failed else "nothing failed", *failed)  # noqa: T201  # for people
    return len(failed)


def fuzz(name: str, target: FuzzTarget, folder: Path, flags: list[str]) -> None:
    """Fuzz a target with the corpus in a folder, until libFuzzer ends the process."""

    def test(data: bytes) -> None:
        target.accepts(data)

    def mutate(data: bytes, max_bytes: int, seed: int) -> bytes:
        random = Random(seed)
        if target.mutate is None or random.random() < BYTEWISE:
            return bytes(atheris.Mutate(data, max_bytes))
        return target.mutate(
            data, random, lambda inner, most: bytes(atheris.Mutate(inner, max(most, 1))), max_bytes
        )

    bounds = [f"-max_len={target.max_bytes}", f"-timeout={TIMEOUT_S}", f"-rss_limit_mb={MEMORY_MB}"]
    quiet = ["-reload=0", "-print_final_stats=1"]
    custom = mutate if target.mutate else None
    atheris.Setup([name, *flags, *bounds, *quiet, str(folder)], test, custom_mutator=custom)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
