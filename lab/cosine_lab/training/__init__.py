"""Makes the embedded model family from a folder of texts."""
