"""Decoding: rows, their cache, their schedule, and the probe of both."""
