"""Other libraries' module names on top of Moewire, on explicit request only."""
