"""Wire formats of tool calls other than the default JSON: tags, ReAct, and code blocks; each is a `tools.Parser`."""
