"""One folder per task, or a module where one is enough.

The tasks know the core (`agent_gym.env`, `tools`, `rewards`, ...) and not each other. A new environment is a folder or
a module here with a `TextEnv` or `ToolEnv` in it, and one table in `registry/environments.toml`; docs/add_an_env.md
walks through it. Nothing is imported here, so that one task never pays for another's packages.
"""

if __name__ != "agent_gym.envs":
    raise ImportError("this folder is not the package 'envs': import 'agent_gym.envs'")
