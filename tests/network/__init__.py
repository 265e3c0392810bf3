"""Nodes and clients in the networks that people have: homes behind routers, long ways, IPv4 and IPv6.

Hosts are network namespaces of Linux, each with a TUN device as its only way out. One process, the internet, holds
the other ends. It takes whole IP packets from one and gives them to another after what a real way does to them: a
delay, a loss by chance, and what a home router does.

A home router has one public address for many private ones. Two things decide who can reach whom through it (RFC
4787): whether a private port is seen under one public port by all (full cone, port restricted) or under another by
each (symmetric), and who may answer: anybody (full cone), or only who was sent to before. Two peers whose public
ports are the same for all can learn them from third parties, and meet by sending to each other at the same time;
a symmetric router shows a third party a port that means nothing to the peer.

Needs Linux, root, `ip` and /dev/net/tun. Nothing leaves the machine, and its own network stays as it is: addresses
and routes are set inside the namespaces alone, which end with the test.
"""
