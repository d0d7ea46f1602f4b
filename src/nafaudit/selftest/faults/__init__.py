"""Decoders that are wrong in one way each, behind the same door as anybody's.

A fault is a decoder, never an edited log: what it writes and claims is what a real decoder with
that mistake would. Each overrides one method of the reference decoder. `catalogue.py` says what
each is, and which check should notice.
"""
