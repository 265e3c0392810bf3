"""The likelihood of the project's prompts for a drafter by domain, which decides the domains it may announce."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from cosine_engine import zoo
from cosine_engine.base import Engine, Row
from cosine_p2p.text.prompt import encode_prompt, read_prompt
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_protocol.errors import PromptRefused
from cosine_protocol.request import Sampling

NEAR: Final = 1.1
"""Maximum ratio of a domain's negative log-likelihood to that of the drafter's own for it to be announced too.

For the five experts of the toy family, texts of other domains have 1.16 (literature for dialogue) to 2.89 times the
negative log-likelihood of their own.
"""


def domain_nll(drafter: Engine, codec: TextTokenizer, domains: Iterable[str] = zoo.DOMAINS) -> dict[str, float]:
    """Return the mean negative log-likelihood per token of the prompts of each domain, in nats."""
    means = {}
    for domain in domains:
        prompts = (_tokens(codec, prompt) for prompt in zoo.prompts(domain))
        fits = range(2, drafter.context_tokens)
        read = [tokens for tokens in prompts if len(tokens) in fits and max(tokens) < drafter.vocab_tokens]
        if read:
            total = sum(_nll(drafter, tokens) * (len(tokens) - 1) for tokens in read)
            means[domain] = total / sum(len(tokens) - 1 for tokens in read)
    return means


def _tokens(codec: TextTokenizer, prompt: zoo.Prompt) -> tuple[int, ...]:
    try:
        return encode_prompt(codec, read_prompt(prompt.asked))
    except PromptRefused:
        # Without a chat template the contents of the messages are read.
        return codec.encode("\n\n".join(message.content for message in prompt.messages))


def _nll(drafter: Engine, tokens: tuple[int, ...]) -> float:
    sequence = drafter.open(sampling=Sampling(), prompt_tokens=len(tokens))
    try:
        row = Row.chain(sequence, tokens, scored_from=len(tokens) - 1)
        (result,) = drafter.forward([replace(row, wants_nll=True)])
    finally:
        drafter.release(sequence)
    if result.error is not None or result.nll is None:
        raise result.error or AssertionError("no likelihood was given")
    return result.nll
