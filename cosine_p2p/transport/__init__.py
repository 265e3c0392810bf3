"""Byte streams between peers: the interface, its in-memory twin, and the hivemind (libp2p) one."""
