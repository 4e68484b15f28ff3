"""The command line `agent-gym`: one module per command, each with `main(argv) -> exit code`."""
