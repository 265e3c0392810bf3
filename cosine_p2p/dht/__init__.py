"""Signed records in the cells of a DHT, checked by each node that stores or reads them."""
