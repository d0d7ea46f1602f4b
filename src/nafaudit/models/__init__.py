"""Loading a Pair and checking that its two models speak one vocabulary."""
