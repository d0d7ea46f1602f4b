"""Pictures of a run and of the paper, drawn in one style and saved byte for byte the same."""
