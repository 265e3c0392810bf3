"""The imports of a node, for prepared processes (`prepared_process`).

Importing these takes more of a processor than all else that a node does until it is ready.
"""

import gc
import os
from importlib import import_module

# Read at import: no test downloads anything or reads the user's folders.
os.environ.update(HF_HUB_OFFLINE="1", HF_HOME=os.devnull)
for name in (
    "cosine_cli.program",
    "cosine_gateway.http.server",
    "cosine_node.serving.draft_role",
    "cosine_node.serving.head_role",
    "cosine_node.serving.node",
    "cosine_node.serving.stage_role",
    "cosine_node.stages.opening",
    "cosine_p2p.transport.full.library",
    "cosine_engine.torch.loading",
    "transformers.models.llama.modeling_llama",
):
    import_module(name)
# No copy collects these objects or writes to their pages.
gc.collect()
gc.freeze()
