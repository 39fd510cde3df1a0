"""Digests of tensors, what records them during a run, and what compares two runs."""
