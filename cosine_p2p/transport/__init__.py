"""Byte streams between peers that are known by their keys: the interface, and two stacks, full and light.

In come addresses and streams that pass the gate; out go messages over channels and shared links.
"""
