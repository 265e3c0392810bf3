"""Byte streams between peers that are known by their keys: the interface, and two stacks, full and light.

In come addresses and streams of peers, past the gate that decides who is talked to; out go messages over channels,
and links that all requests of a client share.
"""
