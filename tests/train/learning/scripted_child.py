"""A child that learns nothing: it writes versions without weights, and gives scripted answers.

It replaces the real one, which test_worker runs, where a test decides the outcome of a round.
"""

import json
import pickle
import sys
from pathlib import Path

from cosine_train.learning.child import Answer, Comparison, ComparisonOrder, RoundOrder, RoundOutcome
from cosine_train.learning.decision import Acceptance
from cosine_train.learning.versions import Versions

SCRIPT = "script.json"
"""The file in the learner's folder with the shares, of 1,000 tokens, of its answers; or `die`."""


def main() -> None:
    order = pickle.load(sys.stdin.buffer)
    assert isinstance(order, RoundOrder | ComparisonOrder)
    folder = Path(order.folder)
    script = json.loads((folder / SCRIPT).read_text())
    if script.get("die"):
        sys.exit(1)

    def of(name: str) -> Acceptance:
        return Acceptance(script.get(name, 0), 1000 if name in script else 0)

    if isinstance(order, RoundOrder):
        versions = Versions(folder)
        (versions.begin(order.number) / "seed").write_text(str(order.number))
        versions.finish(order.number)
        nll = {"nll": script.get("nll", {}), "nll_before": script.get("nll_before", {})}
        answer: Answer = RoundOutcome(
            before=of("before"), after=of("after"), trained_tokens=2000, steps=10, seconds=1.0, **nll
        )
    else:
        answer = Comparison(earlier=of("earlier"), live=of("live"))
    pickle.dump(answer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
