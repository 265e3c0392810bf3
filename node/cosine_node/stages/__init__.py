"""A part of a model on one machine: its service and engine, for the chains that heads set up.

In come layers, rows and activations; out go activations, or the choices of the last stage.
"""
