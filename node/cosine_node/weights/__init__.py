"""Weights between nodes: served to others, and fetched from several sources, each piece checked.

In come a content digest and the tensors that are wanted; out goes a folder that holds them and proves it.
"""
