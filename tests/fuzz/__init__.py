"""Everything that takes a stranger's bytes, fuzzed by coverage (CONTRIBUTING.md, `make fuzz`)."""
