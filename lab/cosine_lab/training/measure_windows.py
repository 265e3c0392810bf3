"""Measures how often drafters give the target's token when they see only the last tokens of a prompt.

python -m cosine_lab.training.measure_windows

The texts are the recorded ones of the real family, whose prompts are kept. Prints one line of JSON for each kind of
prompt, drafter and window.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import torch

from cosine_lab.simulation.traces import Trace, TraceSet
from cosine_lab.simulation.workload import LOOKUP, lookup_engine
from cosine_lab.training.record_smol_traces import LONG, load_drafters
from cosine_lab.training.record_traces import TargetOutput, choices_along
from cosine_node.engine.base import Engine
from cosine_node.zoo.family import Family
from cosine_protocol.request import Sampling

SHORT: Final = "short"
"""All prompts but those over a passage."""
WINDOWS: Final = (32, 64, 128, 256, 512, 1024)
"""Tokens; the longest prompt has 2,602."""
FIRST_CHOICES: Final = 8
"""As many as a drafter ever branches into."""


@dataclass(frozen=True, slots=True)
class WindowRow:
    """One drafter on the prompts of a kind that are longer than `window`, and on the same with the whole prompt.

    Of `tokens` output tokens `first` were its first choice and `among_8` among its first eight; `whole_first` and
    `whole_among_8` where it had seen the whole prompt. `nll` and `whole_nll` are the means that it tells of the
    prompt, in nats a token.
    """

    kind: str
    temperature: float
    drafter: str
    window: int
    prompts: int
    tokens: int
    first: int
    among_8: int
    whole_first: int
    whole_among_8: int
    nll: float
    whole_nll: float


def measure(traces: Sequence[Trace], drafters: Mapping[str, Engine], windows: Sequence[int]) -> Iterator[WindowRow]:
    """A row for each kind of prompt, temperature, drafter and window for which there is a longer prompt."""
    kinds = {(LONG if trace.domain == LONG else SHORT, trace.temperature) for trace in traces}
    for kind, temperature in sorted(kinds):
        own = [t for t in traces if (t.domain == LONG) == (kind == LONG) and t.temperature == temperature]
        for name, engine in drafters.items():
            whole = [hits(engine, trace, trace.prompt_tokens) for trace in own]
            for window in windows:
                pairs = [
                    (hits(engine, trace, window), full)
                    for trace, full in zip(own, whole, strict=True)
                    if trace.prompt_tokens > window
                ]
                if not pairs:
                    continue
                cut, full = Counter[str](), Counter[str]()
                for one, other in pairs:
                    cut.update(one)
                    full.update(other)
                yield WindowRow(
                    kind=kind,
                    temperature=temperature,
                    drafter=name,
                    window=window,
                    prompts=len(pairs),
                    tokens=round(cut["tokens"]),
                    first=round(cut["first"]),
                    among_8=round(cut["among_8"]),
                    whole_first=round(full["first"]),
                    whole_among_8=round(full["among_8"]),
                    nll=round(cut["nll"] / len(pairs), 3),
                    whole_nll=round(full["nll"] / len(pairs), 3),
                )


def hits(drafter: Engine, trace: Trace, window: int) -> dict[str, float]:
    """Tokens of a trace, those that a drafter gives after the last `window` tokens of the prompt, and its loss."""
    sampling = Sampling(temperature=trace.temperature, seed=trace.seed)
    output = TargetOutput(trace.asked[-window:], sampling, trace.stream, trace.near_ties)
    choices, nll = choices_along(drafter, output)
    ranked = [[token for token, _ in choice.candidates[:FIRST_CHOICES]] for choice in choices]
    pairs = list(zip(ranked, trace.stream, strict=True))
    return {
        "tokens": len(trace.stream),
        "first": sum(candidates[:1] == [token] for candidates, token in pairs),
        "among_8": sum(token in candidates for candidates, token in pairs),
        "nll": nll,
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure what drafters of the real family lose by seeing a window of the prompt."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--windows", type=int, nargs="+", default=WINDOWS)
    parser.add_argument("--prompts", type=int, help="the first so many of each temperature, the kinds taking turns")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    known = TraceSet.load_shipped(Family.SMOL)
    traces = [trace for t in (0.0, 0.8) for trace in known.select(temperature=t)[: options.prompts]]
    models = {name: recorded.engine for name, recorded in load_drafters(known.vocab_tokens).items()}
    engines = {**models, LOOKUP: lookup_engine(known.vocab_tokens)}
    for row in measure(traces, engines, options.windows):
        sys.stdout.write(f"{json.dumps(asdict(row))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
