"""Petals' client as `asker` asks: `PYTHON petals_asker.py FOLDER PEER`, by a Python that has Petals.

It imports nothing of this project, which that Python does not have.
"""

import importlib
import json
import sys
import time
from typing import Any


def main() -> None:
    """Answer until stdin ends."""
    torch: Any = importlib.import_module("torch")
    petals: Any = importlib.import_module("petals")
    torch.set_num_threads(1)
    folder, peer = sys.argv[1:]
    model = petals.AutoDistributedModelForCausalLM.from_pretrained(
        folder, initial_peers=[peer], dht_prefix="model", torch_dtype=torch.float32
    )
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        request = json.loads(line)
        began_s, tokens, came_s = time.perf_counter(), [], []
        fed = torch.tensor([request["prompt"]])
        length = len(request["prompt"]) + request["tokens"]
        with torch.inference_mode(), model.inference_session(max_length=length) as session:
            for _ in range(request["tokens"]):
                hidden = session.step(model.transformer.word_embeddings(fed))
                scores = model.lm_head(model.transformer.ln_f(hidden[:, -1:]))
                fed = scores.argmax(-1)
                tokens.append(int(fed))
                came_s.append(time.perf_counter() - began_s)
        sys.stdout.write(json.dumps({"tokens": tokens, "came_s": came_s}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
