"""Measures audits with real engines: `python -m tests.node.verifier.measure_audits honest|liars|cost`.

honest: how often the stream of an honest verifier looks otherwise to another one, by numerics and way to sample.
The author writes alone, sixteen texts at once and with token trees; the auditor reads in pieces of 64, PyTorch with
two threads instead of one. liars: the share of audits that accuse a verifier that lies in one token of 200,
draws from another seed, or runs other weights under the name of these numerics. cost: processor time of both.
"""

import argparse
import math
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist
from typing import Final

import torch

from cosine_lab.experiments.decoding import decoded
from cosine_node.engine.base import Engine, Row
from cosine_p2p.trust.audit_rule import accuses
from cosine_protocol.messages import AuditVerdict
from cosine_protocol.request import Request, Sampling
from tests.node.peers import request_of
from tests.node.verifier.audited_texts import AT_ONCE, Texts, asked, drafted, engine_of, written
from tests.node.verifier.replaying import verdict_on

SAMPLINGS: Final = {
    "greedy": Sampling(),
    "temperature 1": Sampling(temperature=1.0),
    "temperature 0.8, top_p 0.9": Sampling(temperature=0.8, top_p=0.9),
    "temperature 0.8, top_k 20, min_p 0.05": Sampling(temperature=0.8, top_k=20, min_p=0.05),
}
NUMERICS: Final = (
    "float32",
    "bfloat16",
    "float16",
    "float32/float16",
    "float32/int8",
    "bfloat16/int8",
    "gguf:Q4_1+float32",
    "gguf:F32+llama.cpp",
    "gguf:F16+llama.cpp",
    "gguf:BF16+llama.cpp",
    "gguf:Q8_0+llama.cpp",
    "gguf:Q4_1+llama.cpp",
)
IMPOSTORS: Final = {
    "float32": ("gguf:Q4_1+float32", "float32/int8", "float32/float16"),
    "bfloat16": ("gguf:Q4_1+bfloat16", "bfloat16/int8"),
    "gguf:F32+llama.cpp": ("gguf:Q4_1+llama.cpp", "gguf:Q8_0+llama.cpp"),
    "gguf:Q8_0+llama.cpp": ("gguf:Q4_1+llama.cpp",),
    "gguf:Q4_1+llama.cpp": ("gguf:Q4_0+llama.cpp",),
}
"""Whose weights a verifier of these numerics may run instead, to be faster or to need less memory."""
SMALLER: Final = "draft-general"
"""Another model of the same tokens."""
LIED: Final = ("greedy", "temperature 1", "temperature 0.8, top_k 20, min_p 0.05")
"""The ways to sample in which liars are measured."""
HONEST_TOKENS: Final = 125
LIED_TOKENS: Final = 200
"""Output tokens of a text with a lie in one; of other liars' texts 128."""
TOKENS: Final = 128


@dataclass(frozen=True, slots=True)
class AuditTask:
    """Prompts, and how each is sampled, of one model and one claimed numerics."""

    model: str
    numerics: str
    prompts: Texts
    samplings: list[Sampling]

    @classmethod
    def of(cls, model: str, numerics: str, sampling: Sampling, count: int) -> "AuditTask":
        samplings = [replace(sampling, seed=number) for number in range(count)]
        return cls(model, numerics, asked(model, count), samplings)

    def verdicts(self, auditor: Engine, texts: Texts) -> list[tuple[Request, AuditVerdict]]:
        """What an honest auditor says of the texts, with their requests."""
        found = []
        for prompt, sampling, text in zip(self.prompts, self.samplings, texts, strict=True):
            request = request_of(
                "c", prompt=tuple(prompt), sampling=sampling, max_new_tokens=len(text), numerics=self.numerics
            )
            found.append((request, verdict_on(auditor, request, text)))
        return found


def honest(model: str, numerics: str, texts: int, judge: str | None = None) -> Iterator[str]:
    """Lines of the table of false alarms; the auditor computes as `judge` says, or as the author."""
    author, auditor = engine_of(numerics, model=model), engine_of(judge or numerics, model=model)
    for name, sampling in SAMPLINGS.items():
        task = AuditTask.of(model, numerics, sampling, texts)
        torch.set_num_threads(1)
        streams = written(author, task.prompts, task.samplings, tokens=HONEST_TOKENS)
        torch.set_num_threads(2)
        found = task.verdicts(auditor, streams)
        near, different = (
            sum(verdict.near_ties for _, verdict in found),
            sum(verdict.different for _, verdict in found),
        )
        gaps = sorted((finding.gap for _, verdict in found for finding in verdict.findings), reverse=True)
        accused = sum(accuses(verdict, request, numerics=judge) for request, verdict in found)
        named = f"{numerics} by {judge}" if judge else numerics
        yield (
            f"{named} | {name} | {sum(verdict.tokens for _, verdict in found)} positions | {near} near ties | "
            f"{different} different | {accused} of {texts} accused | {' '.join(f'{gap:.4g}' for gap in gaps[:6])}"
        )


def liars(model: str, numerics: str, texts: int) -> Iterator[str]:
    """Lines of the table of detection: other weights, another model, another seed, and a lie in one token."""
    torch.set_num_threads(1)
    auditor = engine_of(numerics, model=model)
    others = {f"weights of {other}": engine_of(other, model=model) for other in IMPOSTORS.get(numerics, ())}
    if model == "target":
        others[f"the model {SMALLER}"] = engine_of(numerics, model=SMALLER)
    for way in LIED:
        task = AuditTask.of(model, numerics, SAMPLINGS[way], texts)
        lies = {name: text_of(engine, task) for name, engine in others.items()}
        lies["another seed"] = text_of(auditor, with_another_seed(task))
        streams = text_of(auditor, task, LIED_TOKENS)
        lies["one token of 200, the second best"] = with_a_lie(auditor, task, streams, is_plausible=True)
        lies["one token of 200, any"] = with_a_lie(auditor, task, streams, is_plausible=False)
        for name, lie in lies.items():
            found = task.verdicts(auditor, lie)
            accused = sum(accuses(verdict, request) for request, verdict in found)
            share, low, high = share_of(accused, texts)
            yield (
                f"{numerics} | {name} | {way} | {accused} of {texts} = {share:.3f} ({low:.3f} to {high:.3f}) | "
                f"{sum(verdict.near_ties + verdict.different for _, verdict in found)} of "
                f"{sum(verdict.tokens for _, verdict in found)} positions differ"
            )


def text_of(engine: Engine, task: AuditTask, tokens: int = TOKENS) -> Texts:
    """What an engine writes, sixteen requests at once."""
    counts = [tokens] * len(task.prompts)
    done = decoded(engine, task.prompts, counts, at_once=AT_ONCE, samplings=task.samplings)
    return [one.tokens for one in done]


def with_another_seed(task: AuditTask) -> AuditTask:
    return replace(task, samplings=[replace(one, seed=one.seed + 10**6) for one in task.samplings])


def with_a_lie(engine: Engine, task: AuditTask, streams: Texts, *, is_plausible: bool) -> Texts:
    """Honest texts, whose last token is replaced by the second of the model's own order, or by any other.

    Since the tokens before are the target's own, the lie could as well stand anywhere.
    """
    texts = [list(stream) for stream in streams]
    chance = random.Random(1)
    for number, (prompt, text) in enumerate(zip(task.prompts, texts, strict=True)):
        honest_token = text[-1]
        if is_plausible:
            text[-1] = second_best(engine, [*prompt, *text[:-1]], task.samplings[number], len(prompt), honest_token)
        while text[-1] == honest_token:
            text[-1] = chance.randrange(engine.vocab_tokens)
    return texts


def second_best(engine: Engine, tokens: list[int], sampling: Sampling, prompt_tokens: int, best: int) -> int:
    """The likeliest token of those that an engine does not choose after a text; that one, where no other may be."""
    sequence = engine.open(sampling=sampling, prompt_tokens=prompt_tokens)
    row = Row.chain(sequence, tokens, scored_from=len(tokens) - 1)
    [result] = engine.forward([replace(row, candidates=8)])
    engine.release(sequence)
    [choice] = result.choices
    return next((token for token, _ in choice.candidates if token != best), best)


def share_of(events: int, count: int, *, confidence: float = 0.95) -> tuple[float, float, float]:
    """A share and its interval (Wilson 1927)."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = events / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return share, max(0.0, centre - half), min(1.0, centre + half)


def cost(model: str, numerics: str, texts: int) -> Iterator[str]:
    """Processor time of writing texts in three ways, and of auditing them."""
    torch.set_num_threads(1)
    engine = engine_of(numerics, model=model)
    task = AuditTask.of(model, numerics, SAMPLINGS["temperature 1"], texts)
    began_s = time.process_time()
    streams = text_of(engine, task)
    seconds = {"sixteen at once": time.process_time() - began_s}
    began_s = time.process_time()
    decoded(engine, task.prompts, [TOKENS] * texts, at_once=1, samplings=task.samplings)
    seconds["one at a time"] = time.process_time() - began_s
    began_s = time.process_time()
    for start in range(0, texts, AT_ONCE):
        part = slice(start, start + AT_ONCE)
        drafted(engine, task.prompts[part], task.samplings[part], streams[part])
    seconds["sixteen at once, trees whose drafts are all right"] = time.process_time() - began_s
    began_s = time.process_time()
    task.verdicts(engine, streams)
    audit_s = time.process_time() - began_s
    prompt_tokens = sum(len(prompt) for prompt in task.prompts) / texts
    for name, written_s in seconds.items():
        yield (
            f"{numerics} | {name} | {prompt_tokens:.0f} prompt and {TOKENS} output tokens | "
            f"{written_s / texts:.3f} s a text, {audit_s / texts:.3f} s an audit | 5 % of texts: "
            f"{5 * audit_s / written_s:.2f} %, by two auditors {10 * audit_s / written_s:.2f} %"
        )


PARTS: Final = {"honest": honest, "liars": liars, "cost": cost}


def main() -> None:
    """Measure what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--model", default="target", help="target or smol-target")
    parser.add_argument("--texts", type=int, default=80, help="of each way to sample")
    parser.add_argument("--numerics", action="append", help="all of the embedded target unless given")
    parser.add_argument("--judge", help="the numerics of the auditor of honest ones, if they are others")
    arguments = parser.parse_args()
    parts = PARTS | {"honest": partial(honest, judge=arguments.judge)}
    for numerics in arguments.numerics or NUMERICS:
        for line in parts[arguments.part](arguments.model, numerics, arguments.texts):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
