"""The command line: typer commands and rich rendering; no logic of its own."""
