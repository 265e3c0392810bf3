"""Models whose matrices stay in the blocks of a GGUF file: made numbers tile by tile, in each product.

In come a class of transformers and the kinds of its matrices; out goes one that computes the same in their bytes.
"""
