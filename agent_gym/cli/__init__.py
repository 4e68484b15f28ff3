"""The command line `agent-gym`: a function per command, from its arguments to the exit code; main.py lists them."""
