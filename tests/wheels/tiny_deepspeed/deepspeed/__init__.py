"""A stand-in for the library."""
