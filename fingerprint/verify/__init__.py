"""Whether watching a program changes what it computes.

watch    the parameters after each optimizer step, and nothing else
check    runs a command with and without the recorder, and compares
"""
