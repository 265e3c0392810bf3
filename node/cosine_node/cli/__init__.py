"""The commands of nodes: parsing and printing only; every command imports what it needs when it runs."""
