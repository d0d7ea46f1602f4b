"""The shared language: designs, draws, ledgers, trajectories, findings. NumPy only."""
