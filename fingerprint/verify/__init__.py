"""Whether watching a program changes what it computes.

check    runs a command with and without the recorder, and compares
"""
