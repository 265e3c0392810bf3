"""Asks an endpoint, reads its answers with a model's weights, and judges them."""

import asyncio
import gc
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from cosine_engine.load_options import EngineKind, LoadOptions
from cosine_engine.models.loading import load, open_model
from cosine_engine.models.served import ModelNames
from cosine_engine.pool_size import PoolSize
from cosine_node.endpoint_audit.asking import AskedEndpoint, EndpointAnswer, EndpointQuestion
from cosine_node.endpoint_audit.questions import draw_questions
from cosine_node.endpoint_audit.reading import Reading, read
from cosine_node.endpoint_audit.verdict import DRAWS, HeldForm, conclude, judge
from cosine_p2p.text.target import read_ends
from cosine_p2p.text.tokenizer import load_tokenizer
from cosine_protocol.errors import UsageError

LOG = logging.getLogger(__name__)
Note = Callable[[str], None]

OTHERS: Final = (("float32", None), ("auto", "float16"), ("bfloat16", None), ("auto", "int8"), ("auto", "int4"))
"""The other forms, by dtype and quantisation; those that this machine cannot make are left out."""
SAMPLED_EVERY: Final = 4
"""One in so many questions is asked at temperature 1 too."""
LEAST_ANSWERS: Final = 10


def questions_of(count: int, seed: int) -> list[EndpointQuestion]:
    """The questions of a seed, each with a separate seed."""
    texts = list(enumerate(draw_questions(count, seed), seed))
    greedy = [EndpointQuestion(text, 0.0, own_seed) for own_seed, text in texts]
    return greedy + [EndpointQuestion(text, 1.0, own_seed) for own_seed, text in texts[::SAMPLED_EVERY]]


@dataclass(frozen=True, slots=True)
class ReadAnswers:
    """Answers with text, and their readings by numerics, the claimed ones first."""

    answers: Sequence[EndpointAnswer]
    readings: Mapping[str, Sequence[Reading]]
    content_digest: str

    def judged(self, places: Sequence[int] | None = None, *, draws: int = DRAWS) -> dict[str, Any]:
        """Judge all answers, or some of them, for a report. Raises `UsageError` for too few."""
        among = range(len(self.answers)) if places is None else places
        greedy = [place for place in among if not self.answers[place].question.temperature]
        sampled = [place for place in among if self.answers[place].question.temperature]
        if len(greedy) < LEAST_ANSWERS:
            raise UsageError(f"{len(greedy)} answers are too few; ask {LEAST_ANSWERS} --questions or more.")
        forms = []
        for numerics, readings in self.readings.items():
            chosen = [readings[place] for place in greedy]
            forms.append(
                HeldForm(numerics, Reading.joined(chosen), np.cumsum([0, *(len(r.told) for r in chosen[:-1])]))
            )
        claimed, surprise = forms[0], 0.0
        if sampled:
            own = Reading.joined([self.readings[claimed.numerics][place] for place in sampled])
            surprise = own.excess / math.sqrt(max(own.variance, 1e-9))
        by_text = judge(forms, draws=draws)
        by_told = None if np.isnan(claimed.reading.told).all() else judge(forms, claimed.reading.told, draws=draws)
        return {
            "verdict": conclude(by_text[0], by_told and by_told[0], surprise),
            "content_digest": self.content_digest,
            "positions": len(claimed.reading.told),
            "departures": {form.numerics: int((form.reading.margins < 0).sum()) for form in forms},
            "text": asdict(by_text[0]) | {"rates": by_text[1]},
            "log_probabilities": by_told and asdict(by_told[0]) | {"rates": by_told[1]},
            "surprise": surprise,
        }


def read_answers(
    answers: Sequence[EndpointAnswer], model: str, claimed: LoadOptions, *, only_claimed: bool, note: Note
) -> ReadAnswers:
    """Read answers in each form of a model. Blocks. Raises `UsageError` if the claimed one cannot be made."""
    files = open_model(model)
    folder = files.folder
    digest = ModelNames.read(model, model, folder).facts.content_digest.hex()
    codec, ends = load_tokenizer(folder), read_ends(folder)
    plain = replace(claimed, kind=EngineKind.AUTO, pool_size=PoolSize(requests=1))
    others = [] if only_claimed else [replace(plain, dtype=dtype, quantize=held) for dtype, held in OTHERS]
    found: dict[str, list[Reading | None]] = {}
    for choice in (replace(plain, kind=claimed.kind), *others):
        note("Loading the weights")
        try:
            engine = load(files, replace(choice, is_served=True))
        except UsageError as error:
            if not found:
                raise
            LOG.info("a form is left out: %s", error)
            continue
        numerics = engine.numerics
        if numerics not in found:
            note(f"Reading the answers in {numerics}")
            found[numerics] = [read(engine, codec, answer, ends) for answer in answers]
        # The next ones need its memory.
        del engine
        gc.collect()
    kept = [place for place, reading in enumerate(next(iter(found.values()))) if reading is not None]
    readings = {name: [one for one in of_all if one is not None] for name, of_all in found.items()}
    return ReadAnswers([answers[place] for place in kept], readings, digest)


async def examine(
    endpoint: AskedEndpoint,
    model: str,
    claimed: LoadOptions,
    *,
    count: int,
    seed: int,
    only_claimed: bool,
    note: Note,
) -> dict[str, Any]:
    """Ask an endpoint `count` questions, and judge its answers with a model's weights, for a report.

    `note` takes a sentence about the current work. Raises `UsageError` and `EndpointFault`.
    """
    answers = await endpoint.ask_all(questions_of(count, seed))
    reading = partial(read_answers, only_claimed=only_claimed, note=note)
    read = await asyncio.to_thread(reading, answers, model, claimed)
    return {
        "endpoint": f"{endpoint.url}#{endpoint.model}",
        "model": model,
        "seed": seed,
        "asked_at_s": round(time.time()),
        "refused_fields": sorted(endpoint.dropped),
        "unanswered": endpoint.faults,
        **await asyncio.to_thread(read.judged),
        "answers": [asdict(answer) for answer in answers],
    }
