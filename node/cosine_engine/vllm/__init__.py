"""Models in vLLM, which runs in a process and a Python of its own: lanes become rows over its blocks of keys."""
