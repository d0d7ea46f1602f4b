"""Served laws: tensors in, tensors out; no model, no file."""
