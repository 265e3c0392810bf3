"""Weights between nodes: served to others, and fetched from several sources, each piece checked.

The input is a content digest and tensor names; the output is a folder with the checked tensors.
"""
