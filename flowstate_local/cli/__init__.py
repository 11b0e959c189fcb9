"""The command line: one file a command, and `main` which lists them."""
