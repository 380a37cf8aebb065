"""The library, loaded at first use, and what is kept of it for one buffer."""
