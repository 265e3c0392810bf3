"""Models of transformers, run in packed passes over paged keys and values, by PyTorch.

In come rows of tokens and their trees; out go each node's choices, as `engine.base` says.
"""
