"""What ranks recorded, read from the library or from the memory of running ranks."""
