"""Measures the silence after a stage has died, with and without a second chain: in virtual time.

    python -m tests.swarm.measure_failovers --tokens 2000 8000 --mbit 10 100

Two halves of a target, each held by two stages whose passes take 20 ms for a token and 40 ms for 64, 10 ms apart,
and 8 KiB of activations a token; a text after a prompt of so many tokens, whose first stage dies once a second
chain had the time to follow. Every text is compared.
"""

import argparse
import sys

from tests.swarm.test_spare_chains import failed_over


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[2000, 8000])
    parser.add_argument("--mbit", type=float, nargs="+", default=[10.0, 100.0])
    options = parser.parse_args()
    for tokens in options.tokens:
        for mbit in options.mbit:
            dies_after = 300 + tokens // 3
            for is_warm in (False, True):
                found = failed_over(
                    prompt_tokens=tokens,
                    is_warm=is_warm,
                    tokens=dies_after + 50,
                    dies_after=dies_after,
                    uplink_bits_per_s=1e6 * mbit,
                )
                kind = "warm" if is_warm else "cold"
                sys.stdout.write(f"{tokens} tokens, {mbit:g} Mbit/s, {kind}: {found.silence_s:.2f} s\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
