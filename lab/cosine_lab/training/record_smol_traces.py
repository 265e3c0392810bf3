"""Records SmolLM2's answers to the project's own prompts and the candidates of its drafters along them.

python -m cosine_lab.training.record_smol_traces --out lab/cosine_lab/emulation/data/smol_traces.npz

Prompts are kept: they are the project's own, short ones of each domain, and long ones over passages of docs/.
"""

import argparse
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from cosine_lab.emulation.traces import Trace, TraceSet
from cosine_lab.training.record_traces import POOL_TOKENS, TEMPERATURES, Recorded, RecordedModel, compose, write
from cosine_node import zoo
from cosine_node.engine.base import Engine
from cosine_node.engine.torch.loading import load_engine, load_model
from cosine_node.engine.vocabulary import DraftVocabulary, ReducedVocabularyEngine
from cosine_node.models.model import fetch_folder
from cosine_node.zoo.family import SCHEME, SMOL_DOMAINS, SMOL_TARGET, Family
from cosine_p2p.request.generation_config import read_eos
from cosine_p2p.request.options import Prompt
from cosine_p2p.text.prompt import encode_prompt, read_prompt
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.request import Sampling

LONG = "long"
"""The domain of prompts over a passage."""
PASSAGE_CHARACTERS = (2000, 4000, 6000, 8000)
"""500 to 2,000 tokens, as in summaries and retrieval."""
TASKS = (
    "Summarise the text above in a few sentences.",
    "Copy the first paragraph of the text above word for word.",
    "Make a list of the most important points of the text above.",
)
"""What is asked about a passage; the prompts take turns."""
SHORTEST_STREAM_TOKENS = 8
"""Shorter answers leave nothing to speculate on."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReducedModel:
    """A drafter with a vocabulary of its own, seen in the tokens of its target."""

    engine: Engine
    model: Recorded
    vocabulary: DraftVocabulary
    vocab_tokens: int

    def logits_along(self, prompt: Sequence[int], stream: Sequence[int]) -> Tensor:
        """Logits in the target's tokens; one that the drafter does not know stands for all of those."""
        own = self.model.logits_along(self.vocabulary.own_tokens(prompt), self.vocabulary.own_tokens(stream))
        known = torch.tensor(self.vocabulary.target_ids)
        logits = torch.full((len(own), self.vocab_tokens), -torch.inf)
        logits[:, known] = own[:, : self.vocabulary.reserved_id].float()
        ids = set(self.vocabulary.target_ids)
        unknown = next((token for token in range(self.vocab_tokens) if token not in ids), None)
        if unknown is not None:
            logits[:, unknown] = own[:, self.vocabulary.reserved_id].float()
        return logits


def main(arguments: list[str] | None = None) -> None:
    """Record acceptance traces of the real family."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="folder of the passages")
    parser.add_argument("--limit-tokens", type=int, default=128)
    parser.add_argument("--tune-prompts", type=int, default=4, help="of each domain; the rest are for the test")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    target = load_target()
    traces = TraceSet(record(target, load_drafters(target.engine.vocab_tokens), options))
    traces.save(options.out)
    log.info("%d traces, %d bytes", len(traces), options.out.stat().st_size)


def record(target: RecordedModel, drafters: Mapping[str, Recorded], options: argparse.Namespace) -> Iterator[Trace]:
    """Every prompt at every temperature; a trace's number is its seed."""
    folder = fetch_folder(f"{SCHEME}{SMOL_TARGET}")
    files = TokenizerFiles.read(folder)
    assert files is not None
    codec, eos = TextTokenizer(files.files), tuple(read_eos(folder))
    number = 0
    for domain, asked in questions(options.docs).items():
        for place, question in enumerate(asked):
            prompt = encode_prompt(codec, read_prompt(question))
            split = "tune" if place < options.tune_prompts else "test"
            for temperature in TEMPERATURES:
                sampling = Sampling(temperature=temperature, seed=number)
                output = write(target.engine, prompt, sampling, options.limit_tokens, eos)
                if len(output.stream) >= SHORTEST_STREAM_TOKENS:
                    trace = compose(output, target, drafters, domain=domain, split=split)
                    yield replace(trace, asked=prompt, eos=eos, vocab_tokens=target.engine.vocab_tokens)
                number += 1
        log.info("%s: %d traces so far", domain, number)


def questions(docs: Path) -> dict[str, list[Prompt]]:
    """The prompts of each domain: the project's own ones, and tasks over the beginnings of its documents."""
    found: dict[str, list[Prompt]] = {
        domain: [prompt.asked for prompt in zoo.prompts(domain) if prompt.messages] for domain in SMOL_DOMAINS
    }
    pages = sorted(docs.glob("*.md"), key=lambda page: page.name)
    long = [page.read_text("utf-8") for page in pages]
    long = [text for text in long if len(text) > max(PASSAGE_CHARACTERS)]
    found[LONG] = [
        [{"role": "user", "content": f"{_passage(text, place)}\n\n{TASKS[place % len(TASKS)]}"}]
        for place, text in enumerate(long)
    ]
    return found


def _passage(text: str, place: int) -> str:
    """The beginning of a text, up to the end of a line."""
    characters = PASSAGE_CHARACTERS[place % len(PASSAGE_CHARACTERS)]
    return text[:characters].rpartition("\n")[0]


def load_target() -> RecordedModel:
    """SmolLM2 in float32 on the CPU."""
    folder = str(fetch_folder(f"{SCHEME}{SMOL_TARGET}"))
    engine = load_engine(folder, dtype="float32", device="cpu", pool_tokens=POOL_TOKENS)
    return RecordedModel(engine, load_model(folder, dtype=torch.float32).eval())


def load_drafters(vocab_tokens: int) -> dict[str, Recorded]:
    """Every drafter of the real family, under the names that drafters of these expertises have in all traces.

    `vocab_tokens` are those of the target.
    """
    found: dict[str, Recorded] = {}
    for name in (name for name in zoo.names(Family.SMOL) if name != SMOL_TARGET):
        (expertise,) = zoo.expertise(name)
        found[f"draft-{expertise}"] = recorded_in(fetch_folder(f"{SCHEME}{name}"), vocab_tokens=vocab_tokens)
    return found


def recorded_in(folder: Path, *, vocab_tokens: int) -> Recorded:
    """The model in a folder in float32 on the CPU, in the target's tokens."""
    vocabulary = DraftVocabulary.read(folder)
    inner = load_engine(str(folder), dtype="float32", device="cpu", pool_tokens=POOL_TOKENS, vocabulary=vocabulary)
    model = RecordedModel(inner, load_model(str(folder), dtype=torch.float32).eval())
    if vocabulary is None:
        return model
    engine = ReducedVocabularyEngine(inner, vocabulary, vocab_tokens=vocab_tokens)
    return ReducedModel(engine, model, vocabulary, vocab_tokens)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
