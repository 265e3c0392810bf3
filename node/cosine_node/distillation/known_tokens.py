"""The choice of a reduced vocabulary: the tokens that a target's answers are made of."""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from cosine_node.distillation.answers import Answer
from cosine_node.engine.draft_vocabulary import DraftVocabulary


def most_frequent(answers: Iterable[Answer], *, tokens: int) -> DraftVocabulary:
    """The vocabulary of the `tokens` most frequent tokens, or of fewer where fewer were seen.

    A token counts once wherever it was written or read, and by its probability wherever it was likely.
    """
    counts: Counter[int] = Counter()
    for answer in answers:
        counts.update(answer.tokens)
        counts.update(dict.fromkeys(answer.prompt, 1))
        weights = np.exp(answer.likely_logs.astype(np.float32)).ravel()
        ids, places = np.unique(answer.likely_ids.ravel(), return_inverse=True)
        for token, weight in zip(ids.tolist(), np.bincount(places, weights, len(ids)).tolist(), strict=True):
            counts[token] += weight
    return DraftVocabulary(tuple(sorted(token for token, _ in counts.most_common(tokens))))
