"""A stage behind an emulated link: `python -m tests.e2e.delayed_stage join --role stage ...`, like `cosine-node`.

`COSINE_TEST_RTT_MS` is the round-trip time of every stream that it serves.
"""

import os

from cosine_node.cli import main
from cosine_node.serving.stage_node import StageNode

if __name__ == "__main__":
    one_way_s = float(os.environ["COSINE_TEST_RTT_MS"]) / 2e3
    # Real stages have real links, and no option for others.
    setattr(StageNode, "_one_way_s", lambda node: one_way_s)  # noqa: B010
    main()
