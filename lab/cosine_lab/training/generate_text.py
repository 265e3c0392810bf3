"""Generates text by the target for drafters to learn from: they will have to guess that text, not ours.

python -m cosine_lab.training.generate_text WORK WORK/models/target --domains code,math
"""

import argparse
import logging
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaForCausalLM

from cosine_lab.training.corpus import Tokens, read_tokens, token_file, write_tokens
from cosine_lab.training.model import continue_rows, default_device, load_model
from cosine_lab.training.stream import Source, TokenMix
from cosine_node.zoo import DOMAINS
from cosine_train.training.loop import computes_in_bfloat16

log = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> None:
    """Continue random windows of the training texts, batch by batch at the temperatures in turn."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    dtype = torch.bfloat16 if computes_in_bfloat16(options.device) else torch.float32
    model = load_model(options.model, options.device, dtype)
    for domain in options.domains.split(","):
        tokens = _generate(model, options, domain)
        write_tokens(token_file(options.work, domain, "generated"), tokens)
        log.info("%s: %d tokens", domain, len(tokens))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("work", type=Path, help="folder that cosine_lab.training.corpus wrote")
    parser.add_argument("model", type=Path, help="folder of the target")
    parser.add_argument("--domains", default=",".join(DOMAINS))
    parser.add_argument("--rows", type=int, default=1536)
    parser.add_argument("--batch-rows", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=40)
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--temperatures", default="0,0.7,1")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default=default_device())
    return parser


def _generate(model: LlamaForCausalLM, options: argparse.Namespace, domain: str) -> Tokens:
    source = Source(read_tokens(token_file(options.work, domain, "train")), 1.0)
    windows = TokenMix([source], options.prompt_tokens, options.seed, options.device)
    generator = torch.Generator(options.device).manual_seed(options.seed)
    temperatures = [float(part) for part in options.temperatures.split(",")]
    parts = []
    for batch in range(-(-options.rows // options.batch_rows)):
        prompts = windows.batch(options.batch_rows)[:, :-1]
        temperature = temperatures[batch % len(temperatures)]
        rows = continue_rows(model, prompts, options.new_tokens, temperature, generator)
        parts.append(rows.cpu().numpy().astype(np.uint16).ravel())
    return np.concatenate(parts)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
