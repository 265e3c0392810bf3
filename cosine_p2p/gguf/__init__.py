"""GGUF files as far as texts go: the path of a file comes in, its header and its tokenizer's files go out.

Weights are read by `cosine_node.gguf`.
"""
