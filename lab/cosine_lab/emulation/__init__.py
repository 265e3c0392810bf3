"""Emulation of clocks, links, cities, devices and models. Equal seeds give equal runs."""
