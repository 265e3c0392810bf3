"""What a node imports before it does anything: where prepared processes begin (`prepared_process`).

Importing these takes more of a processor than all else that a node does until it is ready.
"""

import gc
import os
from importlib import import_module

# Read by what is imported, whatever a node is told later: no test fetches anything, or reads a user's folders.
os.environ.update(HF_HUB_OFFLINE="1", HF_HOME=os.devnull)
for name in (
    "cosine_node.cli.app",
    "cosine_node.gateway.http.server",
    "cosine_node.serving.head",
    "cosine_node.serving.node",
    "cosine_node.serving.stage_node",
    "cosine_node.stages.opening",
    "cosine_p2p.transport.full.library",
    "cosine_node.engine.torch.loading",
    "transformers.models.llama.modeling_llama",
):
    import_module(name)
# It stays: no copy looks through it for garbage, or writes to its pages.
gc.collect()
gc.freeze()
