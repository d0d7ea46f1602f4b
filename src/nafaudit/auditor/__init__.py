"""Judges what was decoded, by code of its own: it imports neither mechanisms nor engine."""
