"""Resolves the name of a model (`zoo:`, a folder, a GGUF file, a hub id) and loads it with an engine."""
