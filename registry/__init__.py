"""Room `agent_gym.registry`."""

if __name__ != "agent_gym.registry":
    raise ImportError("this folder is not the package 'registry': import 'agent_gym.registry'")
