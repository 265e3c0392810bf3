"""The web page of a gateway: its files, built from `web/`, and its own API."""
