"""The tests, and what the processes that they start run."""

import gc
from typing import Final

COLLECTED_AFTER: Final = 50_000
"""New objects after which garbage is looked for, as by `cosine_node.cli`: imports and collection leave none."""

gc.set_threshold(COLLECTED_AFTER)
