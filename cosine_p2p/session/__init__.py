"""One request: in come a `Job` and links to peers; out go committed tokens, counts, and signed statements."""
