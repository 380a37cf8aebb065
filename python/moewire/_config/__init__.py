"""A buffer's settings, from names to fields of the C ABI."""
