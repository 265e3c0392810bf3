"""Models with compressed weights.

Either matrices keep the blocks of a GGUF file and are dequantised tile by tile in each product (`model`), or the
linear layers of a loaded model convert their weights for products of a library (`held_linear`).
"""
