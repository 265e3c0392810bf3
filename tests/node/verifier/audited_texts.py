"""Texts of real engines in the ways in which verifiers make them, to be audited."""

import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from cosine_node import zoo
from cosine_node.engine.base import PREFIX, Choice, Engine, Row
from cosine_node.engine.llama.loading import load_llama
from cosine_node.engine.torch.loading import load_engine
from cosine_node.gguf.unfolding import unfold
from cosine_node.gguf.writing import write_gguf
from cosine_node.zoo.prompt_set import prompts
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.request import Sampling
from tests.node.engine.decoding import decoded

Texts = list[list[int]]
POOL_TOKENS: Final = 16_384
AT_ONCE: Final = 16
PROMPT_TOKENS: Final = 64
DRAFTED: Final = 7
"""Draft tokens of a request in a pass, each with a wrong one beside it."""
_FILES: Final = tempfile.TemporaryDirectory(prefix="cosine-audits-")


def engine_of(numerics: str, *, model: str = "target", threads: int = 1) -> Engine:
    """An engine for an embedded model that has these numerics, such as `float32/int8` or `gguf:Q4_1+llama.cpp`."""
    weights, _, computed = numerics.removeprefix("gguf:").rpartition("+")
    if computed == "llama.cpp":
        return load_llama(gguf_of(model, weights), device="cpu", threads=threads, pool_tokens=POOL_TOKENS)
    dtype, _, quantize = computed.partition("/")
    folder = unfold(gguf_of(model, weights), cache_folder=Path(_FILES.name)) if weights else zoo.location(model)
    return load_engine(str(folder), dtype=dtype, device="cpu", quantize=quantize or None, pool_tokens=POOL_TOKENS)


@lru_cache
def gguf_of(model: str, weights: str) -> Path:
    """An embedded model as a GGUF file; SmolLM2 comes as one."""
    source = zoo.location(model)
    if source.is_file():
        return source
    file = Path(_FILES.name) / f"{model}.{weights}.gguf"
    write_gguf(source, file, weights=weights)
    return file


def asked(model: str, count: int) -> Texts:
    """So many prompts of all domains in the tokens of a model."""
    source = zoo.location(model)
    folder = unfold(source, cache_folder=Path(_FILES.name)) if source.is_file() else source
    files = TokenizerFiles.read(folder)
    assert files is not None
    codec = TextTokenizer(files.files)
    by_domain = [prompts(domain) for domain in zoo.DOMAINS]
    texts = [prompt.render() for row in zip(*by_domain, strict=False) for prompt in row]
    return [list(codec.encode(texts[number % len(texts)])[:PROMPT_TOKENS]) for number in range(count)]


def written(engine: Engine, prompts: Texts, samplings: Sequence[Sampling], *, tokens: int) -> Texts:
    """The outputs: a tenth of the texts one at a time, the others sixteen at once, two fifths with drafts."""
    alone = len(prompts) // 10
    at_once = [
        *decoded(engine, prompts[:alone], [tokens] * alone, at_once=1, samplings=samplings[:alone]),
        *decoded(
            engine,
            prompts[alone:],
            [tokens] * (len(prompts) - alone),
            at_once=AT_ONCE,
            samplings=samplings[alone:],
        ),
    ]
    texts = [one.tokens for one in at_once]
    for start in range(len(texts) - 2 * len(texts) // 5, len(texts), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        texts[part] = drafted(engine, prompts[part], samplings[part], texts[part])
    return texts


def drafted(engine: Engine, prompts: Texts, samplings: Sequence[Sampling], drafts: Texts) -> Texts:
    """The outputs of requests together, each checked in token trees that hold its draft and wrong tokens beside."""
    done: Texts = [[] for _ in prompts]
    sequences = [
        engine.open(sampling=sampling, prompt_tokens=len(prompt))
        for prompt, sampling in zip(prompts, samplings, strict=True)
    ]
    for sequence, prompt in zip(sequences, prompts, strict=True):
        first = Row.chain(sequence, prompt[:-1], scored_from=len(prompt) - 1)
        engine.forward([first])
        engine.keep(sequence, first.nodes)
    while unfinished := [number for number, draft in enumerate(drafts) if len(done[number]) < len(draft)]:
        rows = []
        for number in unfinished:
            told = len(done[number])
            last = done[number][-1] if told else prompts[number][-1]
            rows.append(_tree(sequences[number], last, drafts[number][told : told + DRAFTED]))
        for number, row, result in zip(unfinished, rows, engine.forward(rows), strict=True):
            path = _accepted(row, result.choices)
            done[number] += [result.choices[node].token for node in path]
            engine.keep(row.sequence, path)
            engine.prune(row.sequence, row.nodes)
            del done[number][len(drafts[number]) :]
    for sequence in sequences:
        engine.release(sequence)
    return done


def _tree(sequence: int, last: int, draft: Sequence[int]) -> Row:
    """The last token of a text, below it a draft; odd nodes are wrong tokens, beside the even one after each."""
    tokens, parents = [last], [PREFIX]
    for depth, token in enumerate(draft):
        tokens += [token + 1 if token else 2, token]
        parents += [2 * depth] * 2
    return Row(sequence, tuple(tokens), tuple(range(len(tokens))), tuple(parents))


def _accepted(row: Row, choices: Sequence[Choice]) -> list[int]:
    """The nodes of a tree that are chosen one after the other, from the first one on."""
    path = [0]
    while True:
        chosen = choices[path[-1]].token
        followers = [node for node in row.nodes if row.parents[node] == path[-1] and row.tokens[node] == chosen]
        if not followers:
            return path
        path.append(followers[0])
