"""The child of a learner: `python -m cosine_train.learning.worker` carries out one order from stdin, and ends.

It works at the lowest priority, in one thread, and ends at once when its stdin is closed.
"""

import logging
import os
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from threading import Thread

from cosine_engine.models.model_sizes import ModelSizes
from cosine_engine.torch.threads import limit_threads
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.errors import UsageError
from cosine_train.learning.belief import Belief
from cosine_train.learning.child import Answer, Comparison, ComparisonOrder, Order, RoundOrder, RoundOutcome
from cosine_train.learning.domain_texts import domain_nll
from cosine_train.learning.finetuning import RoundSettings, acceptance_along, train_round
from cosine_train.learning.served_weights import add_what_serves
from cosine_train.learning.stream_store import read_streams
from cosine_train.learning.versions import Versions
from cosine_train.training.distilling import drafter_in

LOG = logging.getLogger(__name__)


def carry_out(order: Order) -> Answer:
    """Return the answer to an order. Raises `UsageError` and `sqlite3.Error`."""
    match order:
        case RoundOrder():
            limit_threads(1, Path(order.base))
            return _learn(order)
        case ComparisonOrder():
            limit_threads(1, Path(order.live))
            streams = read_streams(Path(order.folder), held_out=None, after=order.after)
            vocab_tokens = ModelSizes.read(Path(order.target)).vocab_tokens
            earlier, live = (
                acceptance_along(drafter_in(Path(weights), vocab_tokens=vocab_tokens), streams)
                for weights in (order.earlier, order.live)
            )
            return Comparison(earlier=earlier, live=live)


def _learn(order: RoundOrder) -> RoundOutcome:
    folder, target, shipped = Path(order.folder), Path(order.target), Path(order.shipped)
    files = TokenizerFiles.read(target)
    if files is None:
        raise UsageError(f"{target} has no tokenizer files.")
    codec, vocab_tokens = TextTokenizer(files.files), ModelSizes.read(target).vocab_tokens
    learned, held_out = (read_streams(folder, held_out=which) for which in (False, True))
    settings = RoundSettings(vocab_tokens=vocab_tokens, seed=order.number)
    belief = Belief([*learned, *held_out], drafter_in(shipped, vocab_tokens=vocab_tokens), seed=order.number)
    learned, held_out = belief.of(learned), belief.of(held_out)
    versions = Versions(folder)
    out = versions.begin(order.number)
    try:
        outcome = train_round(Path(order.base), learned, held_out, out, settings, shipped=shipped)
        add_what_serves(out, shipped, kind=order.kind)
        # Compared with the weights as shipped, since small losses of many rounds would add up.
        nll_before, nll = (
            domain_nll(drafter_in(weights, vocab_tokens=vocab_tokens), codec) for weights in (shipped, out)
        )
        versions.finish(order.number)
    except BaseException:
        # It may have filled the disk, and the next round may begin an hour later.
        versions.drop_unfinished()
        raise
    return replace(outcome, nll_before=nll_before, nll=nll)


def main() -> None:
    """Read an order, and write the answer or the error."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    # Output of a library must not mix with the answer.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # All other processes of the machine have priority.
    os.nice(19)
    if sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    order: Order = pickle.load(sys.stdin.buffer)
    Thread(target=_end_with_parent, daemon=True).start()
    answer: Answer | str
    try:
        answer = carry_out(order)
    except Exception as error:  # The task's boundary: the parent gets the error, the log its traceback.
        LOG.exception("the order could not be carried out")
        answer = f"{type(error).__name__}: {error}"
    with answers:
        pickle.dump(answer, answers)


def _end_with_parent() -> None:
    """End the process once its stdin is closed."""
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    main()
