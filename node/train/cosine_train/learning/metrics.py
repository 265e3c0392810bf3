"""Prometheus metrics of drafters that learn."""

from typing import Final

from cosine_node.metrics.node import Series, counter, gauge
from cosine_train.learning.learner import Learner

LEARNER: Final[tuple[Series[Learner], ...]] = (
    gauge("cosine:drafter_learned_version", "Version that serves; 0 as shipped.", lambda one: one.live.number),
    counter("cosine:drafter_learning_rounds", "Rounds of learning.", lambda one: one.state.rounds),
    counter("cosine:drafter_rollbacks", "Versions taken back.", lambda one: one.state.rollbacks),
    gauge("cosine:drafter_kept_streams", "Texts kept to learn from.", lambda one: one.kept.streams),
    gauge(
        "cosine:drafter_held_out_acceptance",
        "Held-out first choices that were right, before and after the last round that went live.",
        lambda one: {"before": one.state.before.share, "after": one.state.after.share},
        label="weights",
    ),
    gauge(
        "cosine:drafter_live_acceptance",
        "First choices that were right in all requests, before the last switch and since.",
        lambda one: {"before": one.state.live_before.share, "since": one.live_since.share},
        label="weights",
    ),
)
