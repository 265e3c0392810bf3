"""Without a screen: surveys, progress and typed lines come in; `Snapshot`s and options go out."""
