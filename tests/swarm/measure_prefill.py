"""Measures the time to the first token of a prompt over three stages, in virtual time.

    python -m tests.swarm.measure_prefill --tokens 2000 --mbit 10 100

Stages whose passes take 20 ms for a token and 40 ms for 64, 10 ms apart, with 8 KiB of activations a token. The
first prompt finds lines that nobody has measured. The bound is what the activations take over one line.
"""

import argparse
import sys

from tests.swarm.test_prefill import first_token_s, line_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--mbit", type=float, nargs="+", default=[10.0, 100.0, 1000.0])
    options = parser.parse_args()
    for mbit in options.mbit:
        found = first_token_s(prompt_tokens=options.tokens, mbit=mbit, prompts=3)
        told = ", ".join(f"{seconds:.2f}" for seconds in found)
        bound_s = line_s(prompt_tokens=options.tokens, mbit=mbit)
        sys.stdout.write(f"{options.tokens} tokens, {mbit:g} Mbit/s: {told} s; bound {bound_s:.2f} s\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
