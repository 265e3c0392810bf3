"""The processing of one request: from a `Job` and links to peers to committed tokens and signed statements."""
