"""`AgentR1/Terminal-v0`: tasks for a shell, in the format of Harbor."""
