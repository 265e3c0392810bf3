"""Finished generations for tests of the demo."""

from collections.abc import Mapping

from cosine_node.demo.race import RacedPrompt, Way
from cosine_p2p.request.results import DrafterReport, Generation, VerifierReport

PASS_S = 0.06


def generation(
    seconds: float,
    *,
    tokens: int = 10,
    rounds: int = 10,
    accepted: int = 0,
    first_s: float = 0.1,
    near_ties: int = 0,
) -> Generation:
    """A generation of so many tokens; the experts of mathematics and code drafted the accepted ones."""
    return Generation(
        text="abc",
        token_ids=tuple(range(tokens)),
        prompt_tokens=4,
        tokens=tokens,
        finish_reason="length",
        seconds=seconds,
        time_to_first_token_s=first_s,
        strategy="cosine",
        seed=1,
        rounds=rounds,
        drafted=5,
        offered=tokens,
        accepted=accepted,
        near_ties=near_ties,
        bytes_sent=10,
        bytes_received=20,
        drafters=(
            DrafterReport("p1", "math", 3, min(1, accepted), 10.0),
            DrafterReport("p2", "code", 2, max(0, accepted - 1), 10.0),
            DrafterReport("p3", "medical", 2, 0, 10.0),
        ),
        verifiers=(VerifierReport("v", 10.0, tokens),),
        why=("code: it is likely",),
    )


def raced(
    *, plain_s: float = 0.64, copying_s: float = 0.32, cosine_s: float = 0.16, temperature: float = 0.0
) -> RacedPrompt:
    """A prompt of ten tokens; plain decoding takes 0.64 s on the emulated device."""
    done: Mapping[Way, Generation] = {
        Way.PLAIN: generation(plain_s),
        Way.COPYING: generation(copying_s, rounds=5),
        Way.COSINE: generation(cosine_s, rounds=2, accepted=5),
    }
    return RacedPrompt(domain="code", prompt="def", temperature=temperature, pass_s=PASS_S, done=done)
