"""Room `agent_gym.envs`."""

if __name__ != "agent_gym.envs":
    raise ImportError("this folder is not the package 'envs': import 'agent_gym.envs'")
