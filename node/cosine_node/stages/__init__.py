"""A model in parts over several machines: a stage's service and engine, and chains of stages.

In come layers, rows and activations; out go activations, or the choices of the last stage.
"""
