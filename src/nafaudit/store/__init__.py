"""The run directory: parts, journal, resume."""
