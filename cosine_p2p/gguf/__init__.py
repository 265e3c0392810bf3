"""GGUF files: their header, and their tokenizer as files of transformers."""
