"""Training scripts that know nothing of fpdiff; `fpdiff demo` and the tutorial record them."""
