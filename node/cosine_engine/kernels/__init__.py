"""Kernels of a decoder on a CPU, compiled by Numba for the present processor and cached: arrays in, arrays out.

Each row of a result is computed by the same instructions in the same order, whatever the other rows and the number
of threads are, so that its bits do not depend on them.
"""
