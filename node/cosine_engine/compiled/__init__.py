"""Passes of models of the Llama and Gemma 3 kinds on a CPU, with the same bits in every pass.

Compiled kernels (`engine.kernels`) do everything, with weights held as `engine.blocks` does. Input and output
are those of the PyTorch engine (`engine.torch`).
"""
