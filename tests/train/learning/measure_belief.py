"""What belief is worth: how often shipped weights guess texts, and what garbage teaches.

`python -m tests.train.learning.measure_belief` prints for each drafter how many times as often as by chance it
guesses texts of the target and garbled ones; with `poison` it learns from honest clients and from new keys that
send shuffled tokens, with the rule and without. `--family smol` takes the real family instead of the toy one.
"""

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from cosine_lab.experiments.decoding import decoded
from cosine_node import zoo
from cosine_node.drafter.observer import NO_GUESS
from cosine_node.engine.base import Engine
from cosine_node.engine.torch.loading import load_engine
from cosine_node.models.model import fetch_folder
from cosine_node.models.model_sizes import ModelSizes
from cosine_node.zoo import Family
from cosine_p2p.text.prompt import encode_prompt, read_prompt
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.request import Sampling
from cosine_train.learning.belief import Belief
from cosine_train.learning.finetuning import RoundSettings, train_round
from cosine_train.learning.streams import VerifiedStream
from cosine_train.training.distilling import choices_along, drafter_in

DRAFTERS: Final = {
    Family.TOY: ("draft-code", "draft-math", "draft-dialogue"),
    Family.SMOL: ("smol-code", "smol-math", "smol-dialogue"),
}
"""The first of a family is the one that learns."""
DOMAINS: Final = ("medical", "literature", "dialogue")
TEMPERATURES: Final = (0.0, 0.8, 1.0)
TOKENS: Final = 96
PROMPT_TOKENS: Final = 64


def folder_of(name: str) -> Path:
    """The folder of a model, whose weights may be those of a GGUF file."""
    return fetch_folder(f"{zoo.SCHEME}{name}")


def target_tokens(family: Family) -> int:
    """The tokens of a family's vocabulary."""
    return ModelSizes.read(folder_of(zoo.target_of(family))).vocab_tokens


def texts_of(family: Family, domain: str, count: int, *, temperature: float) -> list[VerifiedStream]:
    """So many texts of the target."""
    folder = folder_of(zoo.target_of(family))
    files = TokenizerFiles.read(folder)
    assert files is not None
    codec = TextTokenizer(files.files)
    asked = [encode_prompt(codec, read_prompt(prompt.asked))[:PROMPT_TOKENS] for prompt in zoo.prompts(domain)]
    begun = [asked[number % len(asked)] for number in range(count)]
    samplings = [Sampling(temperature=temperature, seed=1000 + number) for number in range(count)]
    engine = load_engine(str(folder), dtype="float32", device="cpu", pool_tokens=16_384)
    outputs = decoded(engine, begun, [TOKENS] * count, at_once=16, samplings=samplings)
    return [
        VerifiedStream(
            client="",
            sampling=sampling,
            prompt=tuple(prompt),
            tokens=tuple(output.tokens),
            guesses=(NO_GUESS,) * len(output.tokens),
        )
        for prompt, output, sampling in zip(begun, outputs, samplings, strict=True)
    ]


def times_chance(drafter: Engine, texts: Sequence[VerifiedStream]) -> float:
    """Right guesses by right guesses of chance, along texts together."""
    guesses, said = Counter[int](), Counter[int]()
    right = 0
    for text in texts:
        choices = choices_along(drafter, text.prompt, text.tokens, Sampling())
        for choice, token in zip(choices, text.tokens, strict=True):
            guesses[choice.token] += 1
            said[token] += 1
            right += choice.token == token
    by_chance = sum(times * said[token] for token, times in guesses.items())
    return right * said.total() / by_chance if by_chance else 0.0


def shuffled(text: VerifiedStream, rng: random.Random) -> VerifiedStream:
    """Its tokens in any order."""
    return replace(text, tokens=tuple(rng.sample(text.tokens, len(text.tokens))))


def half_made_up(text: VerifiedStream, tokens: Sequence[int], rng: random.Random) -> VerifiedStream:
    """Every second of its tokens is another."""
    made_up = tuple(token if place % 2 else rng.choice(tokens) for place, token in enumerate(text.tokens))
    return replace(text, tokens=made_up)


def cell(drafter: Engine, texts: Sequence[VerifiedStream]) -> str:
    """The times of all texts together, and the least and the most of a single one."""
    alone = [times_chance(drafter, [text]) for text in texts]
    return f"{times_chance(drafter, texts):.1f} ({min(alone):.1f} to {max(alone):.1f})"


def measure_belief(family: Family, count: int) -> None:
    """The table of times."""
    vocab_tokens = target_tokens(family)
    sys.stdout.write("| drafter | texts | temperature | the target's | shuffled | every second made up |\n")
    rng = random.Random(0)
    for domain in DOMAINS:
        for temperature in TEMPERATURES:
            texts = texts_of(family, domain, count, temperature=temperature)
            tokens = [token for text in texts for token in text.tokens]
            kinds = texts, [shuffled(each, rng) for each in texts], [half_made_up(t, tokens, rng) for t in texts]
            for name in DRAFTERS[family]:
                drafter = drafter_in(folder_of(name), vocab_tokens=vocab_tokens)
                cells = " | ".join(cell(drafter, kind) for kind in kinds)
                sys.stdout.write(f"| {name} | {domain} | {temperature} | {cells} |\n")
                sys.stdout.flush()


def measure_poison(family: Family, count: int, *, keys: int, garbage_tokens: int, seed: int) -> None:
    """The acceptance of a drafter along other texts, before and after it has learned."""
    rng = random.Random(seed)
    shipped = folder_of(DRAFTERS[family][0])
    vocab_tokens = target_tokens(family)
    texts = texts_of(family, "medical", count, temperature=0.8)
    held_out, honest = texts[: count // 4], texts[count // 4 :]
    honest = [replace(text, client=f"client {number % 4}") for number, text in enumerate(honest)]
    garbage = []
    for number in range(keys):
        text = shuffled(rng.choice(honest), rng)
        cut = text.tokens[:garbage_tokens]
        garbage.append(replace(text, client=f"key {number}", tokens=cut, guesses=(NO_GUESS,) * len(cut)))
    mixed = rng.sample([*honest, *garbage], len(honest) + len(garbage))
    belief = Belief(mixed, drafter_in(shipped, vocab_tokens=vocab_tokens), seed=seed)
    for name, learned in (("honest alone", honest), ("believed", belief.of(mixed)), ("all", mixed)):
        with tempfile.TemporaryDirectory() as folder:
            settings = RoundSettings(vocab_tokens=vocab_tokens, seed=seed)
            done = train_round(shipped, learned, held_out, Path(folder), settings, shipped=shipped)
        tokens = sum(len(text.tokens) for text in learned)
        false = sum(len(text.tokens) for text in learned if text.client.startswith("key"))
        acceptance = f"{done.before.share:.3f} to {done.after.share:.3f} of {done.after.tokens}"
        sys.stdout.write(f"{name}: {tokens} tokens learned, {false} of them garbage, acceptance {acceptance}\n")
        sys.stdout.flush()


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description="What belief is worth.")
    parser.add_argument("what", nargs="?", choices=("belief", "poison"), default="belief")
    parser.add_argument("--family", type=Family, choices=list(Family), default=Family.TOY)
    parser.add_argument("--texts", type=int, default=24)
    parser.add_argument("--keys", type=int, default=40)
    parser.add_argument("--garbage-tokens", type=int, default=90)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.what == "belief":
        measure_belief(given.family, given.texts)
    else:
        keys = {"keys": given.keys, "garbage_tokens": given.garbage_tokens}
        measure_poison(given.family, given.texts, seed=given.seed, **keys)


if __name__ == "__main__":
    main()
