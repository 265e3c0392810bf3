"""docs/benchmarks.md and its figures, made of the results of experiments."""
