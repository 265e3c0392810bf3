"""Prints what a round of learning takes: `python -m cosine_lab.training.measure_rounds zoo:draft-code`."""

import json
import resource
import shutil
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from random import Random

from cosine_node import zoo
from cosine_node.drafter.observer import NO_GUESS
from cosine_node.learning.served_weights import gguf_kind
from cosine_node.learning.stream_store import StreamStore
from cosine_node.learning.streams import VerifiedStream
from cosine_node.learning.worker import RoundOrder, RoundOutcome, carry_out
from cosine_node.models.model import fetch_folder
from cosine_p2p.text.tokenizer_files import NAMES
from cosine_protocol.request import Sampling

STREAMS = 60
PROMPT_TOKENS = 40
TEXT_TOKENS = 60


def fill(folder: Path, *, known_tokens: int) -> None:
    """Keep streams of random tokens: what a round takes does not depend on what they say."""
    rng = Random(1)
    with closing(StreamStore(folder)) as store:
        for number in range(STREAMS):
            tokens = tuple(rng.randrange(known_tokens) for _ in range(PROMPT_TOKENS + TEXT_TOKENS))
            stream = VerifiedStream(
                client=str(number % 4),
                sampling=Sampling(),
                prompt=tokens[:PROMPT_TOKENS],
                tokens=tokens[PROMPT_TOKENS:],
                guesses=(NO_GUESS,) * TEXT_TOKENS,
                failed=(),
            )
            store.add(stream)


def target_in(folder: Path, *, vocab_tokens: int) -> Path:
    """What a round reads of a target: the toy family's tokenizer, and a number of tokens."""
    folder.mkdir()
    for name in NAMES:
        if (zoo.tokenizer_folder() / name).is_file():
            shutil.copyfile(zoo.tokenizer_folder() / name, folder / name)
    (folder / "config.json").write_text(json.dumps({"vocab_size": vocab_tokens}))
    return folder


def main() -> None:
    model = sys.argv[1]
    shipped = fetch_folder(model)
    with tempfile.TemporaryDirectory() as place:
        fill(Path(place), known_tokens=2000)
        target = target_in(Path(place) / "target", vocab_tokens=49_152)
        outcome = carry_out(
            RoundOrder(
                folder=place,
                number=1,
                base=str(shipped),
                shipped=str(shipped),
                kind=gguf_kind(shipped),
                target=str(target),
            )
        )
    assert isinstance(outcome, RoundOutcome)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(
        f"{model}: {outcome.trained_tokens} tokens in {outcome.steps} steps, {outcome.seconds:.1f} s, "
        f"{peak_mb:.0f} MiB at most\n"
    )


if __name__ == "__main__":
    main()
