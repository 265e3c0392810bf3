"""Models in vLLM, in a separate process and Python: lanes become rows over vLLM's blocks of keys."""
