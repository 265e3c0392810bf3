"""The choice of a reduced vocabulary: the tokens that a target's answers are made of."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from cosine_node.distillation.answers import Answer
from cosine_node.engine.draft_vocabulary import DraftVocabulary


def most_frequent(answers: Sequence[Answer], *, tokens: int, shares: Mapping[str, float]) -> DraftVocabulary:
    """The vocabulary of the `tokens` most frequent tokens, or of fewer where fewer were seen.

    A token counts once for each time it was written and each prompt it is in, and by its probability wherever it
    was likely. With `shares`, frequencies within each domain are weighted by them.
    """
    if not shares:
        frequencies = _counts(answers)
    else:
        frequencies = Counter()
        for domain, share in shares.items():
            counts = _counts(answer for answer in answers if answer.domain == domain)
            total = sum(counts.values())
            frequencies.update({token: share * count / total for token, count in counts.items()})
    return DraftVocabulary(tuple(sorted(token for token, _ in frequencies.most_common(tokens))))


def _counts(answers: Iterable[Answer]) -> "Counter[int]":
    counts: Counter[int] = Counter()
    for answer in answers:
        counts.update(answer.tokens)
        counts.update(set(answer.prompt))
        weights = np.exp(answer.likely_logs.astype(np.float32)).ravel()
        ids, places = np.unique(answer.likely_ids.ravel(), return_inverse=True)
        counts.update(dict(zip(ids.tolist(), np.bincount(places, weights, len(ids)).tolist(), strict=True)))
    return counts
