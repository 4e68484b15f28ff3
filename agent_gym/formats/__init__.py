"""The wire formats of tool calls: JSON (hermes), tags, ReAct, and code blocks. Each is an `agent_gym.tools.Parser`."""
