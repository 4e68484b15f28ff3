"""TRL trainers that roll out environments and learn only from the tokens the policy sampled.

Nothing is imported here: `agent_gym.trainers.grpo` and its siblings need torch and TRL (`pip install
'agent-gym[train]'`), and reading a config or a help text must not have to wait for them.
"""

if __name__ != "agent_gym.trainers":
    raise ImportError("this folder is not the package 'trainers': import 'agent_gym.trainers'")
