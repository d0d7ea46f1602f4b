"""Decoders that are wrong in one way each, black boxes like those from outside.

A fault is a decoder, never an edited log: what it writes and claims is what a real decoder with
that mistake would. Each overrides one method of the reference decoder. `catalogue.py` says what
each is, and which check should notice.
"""
