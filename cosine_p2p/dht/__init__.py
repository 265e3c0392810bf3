"""Signed records in the cells of a DHT: what is stored where, checked by whoever stores or reads it."""
