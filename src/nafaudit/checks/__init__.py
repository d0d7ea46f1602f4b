"""Records in, findings out; no torch."""
