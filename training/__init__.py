"""Makes the embedded model family from a folder of texts. Not part of the installed package."""
