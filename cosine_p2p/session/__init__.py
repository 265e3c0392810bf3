"""One request from open to end, and what follows it: its audits.

In come a `Job` and links to peers; out go committed tokens, counts, and what was signed.
"""
