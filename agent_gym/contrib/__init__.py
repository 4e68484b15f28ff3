"""Bridges to other libraries; docs/adapters.md lists what each was run with.

Out (`to_*` and the classes beside them; lending.py is what they share): TRL, SkyRL, verl, verifiers, OpenEnv, NeMo Gym,
GEM. In (`From*`): any Gymnasium environment on texts, reasoning-gym, TextArena, GEM, TRL, and the tools of MCP. Each
module imports its library when it is used. What the others have no place for is lost on the way out: GEM knows one text
and no token ids, TRL no reward of a step and no end that the environment declares.
"""
