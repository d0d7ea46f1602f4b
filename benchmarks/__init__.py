"""Speed as ratios: `python -m benchmarks`; single parts run on their own too."""
