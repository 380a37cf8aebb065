"""Code that the tests of several hosts share."""
