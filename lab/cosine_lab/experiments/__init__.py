"""Experiments behind docs/benchmarks.md, one in a module: in virtual time, by the clock, or only on the engine."""
