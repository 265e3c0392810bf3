"""What every simulated run is compared with: the target's own stream, one token at a time."""

from collections.abc import Sequence

from cosine_node.engine.base import PREFIX, Engine, Row
from cosine_protocol.request import Sampling


def plain_stream(
    engine: Engine, prompt: Sequence[int], sampling: Sampling, *, tokens: int, eos: Sequence[int] = ()
) -> tuple[int, ...]:
    """At most `tokens` output tokens after a prompt, up to the first of `eos`: no tree, no batch, no network."""
    sequence = engine.open(sampling=sampling, prompt_tokens=len(prompt))
    fed, output = tuple(prompt), list[int]()
    try:
        while len(output) < tokens and not (output and output[-1] in eos):
            names = tuple(range(len(fed)))
            row = Row(sequence, fed, names, (PREFIX, *names[:-1]), scored_from=len(fed) - 1)
            output.append(engine.forward([row])[0].choices[0].token)
            engine.keep(sequence, names)
            fed = (output[-1],)
    finally:
        engine.release(sequence)
    return tuple(output)
