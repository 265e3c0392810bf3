"""A drafter whose rounds are short: `python -m tests.e2e.quick_learner join --learn ...`, like `cosine-node`.

Its child is this module with `round` alone. It stays near fewer texts of the drafter's own, and learns in float32:
many processors emulate bfloat16, at a tenth of the speed.
"""

import sys
from contextlib import nullcontext
from functools import partial

from cosine_node.cli import main
from cosine_node.learning import child

if __name__ == "__main__":
    if sys.argv[1:] == ["round"]:
        import torch

        from cosine_node.learning import worker
        from cosine_node.learning.finetuning import RoundSettings

        setattr(torch, "autocast", lambda *_: nullcontext())  # noqa: B010
        setattr(worker, "RoundSettings", partial(RoundSettings, own_texts=32, own_tokens=64))  # noqa: B010
        worker.main()
    else:
        # The learner is imported with it, when the drafter is loaded.
        setattr(child, "COMMAND", (sys.executable, "-m", "tests.e2e.quick_learner", "round"))  # noqa: B010
        main()
