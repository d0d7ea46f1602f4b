"""One row of numbers per trajectory, and every question that is asked of those rows; no torch."""
