"""Moewire inside other frameworks. Each module here needs its framework; none is imported here."""
