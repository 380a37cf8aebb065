"""What the tests of several hosts share."""
