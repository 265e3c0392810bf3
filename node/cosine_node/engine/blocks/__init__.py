"""Models whose weights are smaller in memory than the numbers that are computed with.

Matrices stay in the blocks of a GGUF file, and are made numbers tile by tile in each product: in come a class of
transformers and the kinds of its matrices, out goes one that computes the same in their bytes. Or the linear layers
of a loaded model hold their weights in float16.
"""
