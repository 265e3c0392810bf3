"""The widgets, which know no network: what to draw and keys come in, messages of what was chosen go out."""
