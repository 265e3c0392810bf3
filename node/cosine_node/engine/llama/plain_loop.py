"""A process that times llama.cpp's own server where it decodes without drafts: the baseline beside PyTorch's.

Run as a module, `python -m cosine_node.engine.llama.plain_loop FILE`. It reads `[prompts, tokens]` from stdin and
answers with `{"token_ms"}`, the median over prompts of the milliseconds a token, in one thread, by the server's own
clock.
"""

import json
import sys
from collections.abc import Sequence
from statistics import median


def token_ms(file: str, prompts: Sequence[str], tokens: int) -> float:
    """The milliseconds a token after the first one."""
    from xllamacpp import CommonParams, Server

    params = CommonParams()
    params.model.path = file
    params.n_ctx, params.n_parallel, params.cpuparams.n_threads = 1024, 1, 1
    server = Server(params)
    asked = {"temperature": 0, "max_tokens": tokens, "ignore_eos": True}
    found = [server.handle_completions({**asked, "prompt": prompt}) for prompt in prompts]
    return median(float(done["timings"]["predicted_per_token_ms"]) for done in found)


def main() -> None:
    prompts, tokens = json.load(sys.stdin)
    sys.stdout.write("\n" + json.dumps({"token_ms": token_ms(sys.argv[1], prompts, tokens)}))


if __name__ == "__main__":
    main()
