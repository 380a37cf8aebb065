"""Peers that have to be installed: each into a folder of its own, with a pinned version."""
