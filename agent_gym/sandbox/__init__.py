"""Runs programs that a policy wrote: fast, the same every time, and where they can do no harm."""

from agent_gym.sandbox.base import Execution, Limits, Sandbox, SandboxError, SandboxUnavailable, Session
from agent_gym.sandbox.local import LocalSandbox
from agent_gym.sandbox.remote import RemoteSandbox
from agent_gym.sandbox.selftest import PROPERTIES
from agent_gym.sandbox.shared import make_sandbox, shared_sandbox

__all__ = [
    "PROPERTIES",
    "Execution",
    "Limits",
    "LocalSandbox",
    "RemoteSandbox",
    "Sandbox",
    "SandboxError",
    "SandboxUnavailable",
    "Session",
    "make_sandbox",
    "shared_sandbox",
]
