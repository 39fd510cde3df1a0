"""Digests of tensors, what records them during a run, and what compares two runs.

digest/     from the bytes of a tensor to a 128-bit digest
record/     what watches a run
bisect/     what compares two runs
certify/    what checks one run alone
verify/     whether watching a program changes what it computes
catalogue/  what is known of operators, as data
"""
