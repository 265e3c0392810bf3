"""From a verifier's likelihoods to log-probabilities of tokens with their texts. Pure."""

from collections.abc import Sequence

from cosine_p2p.request.logprobs import LikelyToken, NamedToken, TokenLogprob
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_protocol.verify import Likelihood, log_probability_of


class ToldLogprobs:
    """Converts a verifier's likelihoods; `of_output` and `of_prompt` are the options."""

    def __init__(self, codec: TextTokenizer, *, of_output: int | None = None, of_prompt: int | None = None) -> None:
        self._codec = codec
        self._of_output, self._of_prompt = of_output, of_prompt

    def of_output(self, tokens: Sequence[int], told: Sequence[Likelihood]) -> tuple[TokenLogprob, ...]:
        top = self._of_output
        return () if top is None else self._of(tokens, told, top)

    def of_prompt(self, prompt: Sequence[int], told: Sequence[Likelihood]) -> tuple[NamedToken, ...]:
        """Return those of the prompt, the first token without one; empty before they arrive."""
        top = self._of_prompt
        if top is None or len(told) < len(prompt) - 1:
            return ()
        return (NamedToken(*self._named(prompt[0])), *self._of(prompt[1:], told, top))

    def _of(self, tokens: Sequence[int], told: Sequence[Likelihood], top: int) -> tuple[TokenLogprob, ...]:
        return tuple(
            TokenLogprob(
                *self._named(token),
                log_probability_of(each.surprisal),
                tuple(
                    LikelyToken(*self._named(likely.token), log_probability_of(likely.surprisal))
                    for likely in each.top[:top]
                ),
            )
            for token, each in zip(tokens, told, strict=False)
        )

    def _named(self, token: int) -> tuple[int, str, tuple[int, ...]]:
        if special := self._codec.special_text(token):
            return token, special, ()
        data = self._codec.token_bytes(token)
        return token, data.decode(errors="replace"), tuple(data)
