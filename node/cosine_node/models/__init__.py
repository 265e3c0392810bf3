"""Which files the name of a model means, and which engine runs them.

In come a name (`zoo:`, a folder, a GGUF file, a hub id) and options; out comes an open model.
"""
