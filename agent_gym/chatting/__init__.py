"""Chat: a person talks to a policy that uses an environment's tools, in the terminal or on a local web page."""

from agent_gym.chatting.conversation import Conversation, Limits

__all__ = ["Conversation", "Limits"]
