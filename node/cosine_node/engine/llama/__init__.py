"""GGUF models, run by llama.cpp in lanes.

In come rows of tokens and their trees; out go each node's choices, as `engine.base` says.
"""
