"""The worth of a budget: certificates of passages, attacks in budget, and frontiers."""
