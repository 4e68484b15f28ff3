"""ReTool."""
