"""Wire formats of tool calls: the families of models (families.py), tags, ReAct, code blocks; each a `calls.Parser`."""
