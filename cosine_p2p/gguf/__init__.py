"""GGUF files as far as texts go: a path comes in, the header and the tokenizer's files go out."""
