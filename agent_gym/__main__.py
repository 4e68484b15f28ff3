"""`python -m agent_gym`: the same as the command `agent-gym`."""

from agent_gym.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
