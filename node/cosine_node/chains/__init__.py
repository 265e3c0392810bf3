"""Heads: chains over stages, which are found, measured, checked and replaced; and plans of a model over machines.

In come records of stages and the rows of passes; out go results, and which stages are believed.
"""
