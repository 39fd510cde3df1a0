"""The command line: typer commands and rich rendering; no logic of its own.

main     the entry point, where errors become a sentence and an exit code
record   `fpdiff record`
compare  `fpdiff compare`
certify  `fpdiff certify`
sql      `fpdiff sql`
show     `fpdiff show`
compact  `fpdiff compact`
upload   `fpdiff upload`
verify   `fpdiff verify`
demo     `fpdiff demo`
report   a verdict as a person would want to read it
output   results of statements as a table, CSV, JSON or Parquet
shell    the interactive shell of `fpdiff sql`
runs     runs named on the command line, and their labels
keep     the folder that `--keep` names
console  stdout is data, stderr is talk
"""
