"""What could keep a machine from joining: facts gathered by thin shells, each judged by a pure function."""
