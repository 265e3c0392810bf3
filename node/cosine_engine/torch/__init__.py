"""The PyTorch engine: transformers models in packed passes over paged keys and values.

Its input is rows of tokens in their trees; its output is the choices at each node (`engine.base`).
"""
