"""Bridges to other libraries: TRL's `environment_factory` and GEM in both directions, and MCP's tools.

`to_*` lends an environment of agent_gym to the other library; `From*` is an environment of the other library as a
`TextEnv`. Each module imports its library when it is used. What the others have no place for is lost on the way out:
GEM knows one text and no token ids, TRL no reward of a step and no end that the environment declares.
"""
