"""Room `agent_gym.trainers`."""

if __name__ != "agent_gym.trainers":
    raise ImportError("this folder is not the package 'trainers': import 'agent_gym.trainers'")
