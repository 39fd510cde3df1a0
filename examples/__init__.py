"""Training scripts that know nothing of fpdiff; `fpdiff demo` and the tutorial record them.

train_gpt  a small GPT, data-parallel, with a fault to plant
"""
