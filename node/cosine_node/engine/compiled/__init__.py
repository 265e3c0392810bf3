"""Passes of Llama-like models on a CPU whose results have the same bits in every pass.

Compiled kernels do everything but the products with weights, which libraries do (`engine.blocks`). Input and output
are those of the PyTorch engine (`engine.torch`).
"""
