"""Prints how likely the prompts of each domain are to the toy drafters, and what tells own domains from others."""

import sys

from cosine_node import zoo
from cosine_node.engine.torch.loading import load_engine
from cosine_node.learning.domain_texts import domain_nll, own_and_foreign
from cosine_p2p.text.tokenizer import TextCodec
from cosine_p2p.text.tokenizer_files import TokenizerFiles


def main() -> None:
    files = TokenizerFiles.read(zoo.tokenizer_folder())
    assert files is not None
    codec = TextCodec(files.files)
    for own in zoo.DOMAINS:
        nll = domain_nll(load_engine(str(zoo.folder(f"draft-{own}")), pool_tokens=4096), codec)
        least, most = own_and_foreign(nll, own)
        means = ", ".join(f"{domain} {mean:.2f}" for domain, mean in nll.items())
        sys.stdout.write(f"draft-{own}: {means}; others {least:.2f} to {most:.2f} times {own}\n")


if __name__ == "__main__":
    main()
