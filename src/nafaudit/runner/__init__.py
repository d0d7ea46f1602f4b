"""Stage 1: design in, findings out."""
