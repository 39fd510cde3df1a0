"""`python -m fpdiff`."""

from fpdiff.cli.main import main

main()
