"""A peer of the DHT, by hivemind's daemon: streams and calls come in; `Stream`s and postings go out."""
