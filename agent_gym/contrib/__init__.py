"""Bridges to other libraries; docs/adapters.md lists the versions that each was run with.

Out (`to_*` and their classes; lending.py is the common part): TRL, SkyRL, verl, verifiers, OpenEnv, NeMo Gym, GEM. In
(`From*`): any Gymnasium environment on texts, reasoning-gym, TextArena, GEM, TRL, and the tools of MCP. Each module
imports its library when it is used. Data without a place in the other library is lost on the way out: GEM knows one
text and no token ids, TRL no reward of a step and no end that the environment declares.
"""
