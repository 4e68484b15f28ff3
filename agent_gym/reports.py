"""What a step reports in `info`: noted down when it happens, written out when somebody wants to read it.

`TextEnv.step` writes it at once, so that `info` is an ordinary dict. A vector environment keeps the notes of its
environments until somebody looks (vector/lazy.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from agent_gym.transcript import Turn

if TYPE_CHECKING:
    from agent_gym.chat import Message
    from agent_gym.env import Reply


class StepReport(NamedTuple):
    """All that `info` of one step is made of. Nothing is asked of the environment later, which will have gone on.

    Attributes:
        turn: the action and the world's answer.
        answers: that answer as messages.
        reply: what the environment's rules said.
        terms: weighted reward terms by name.
        process_reward: the part of their sum that judges the way and not the outcome.
        over: whether the episode ended.
        tokens: whether there is a tokenizer, and ids to be told.
    """

    turn: Turn
    answers: list[Message]
    reply: Reply
    terms: dict[str, float]
    process_reward: float
    over: bool
    tokens: bool

    def info(self) -> dict[str, Any]:
        """Write it out; see `TextEnv.step`. Call it once: the lists and dicts of one report are not copied."""
        turn, answers, reply, terms, process_reward, over, tokens = self
        info: dict[str, Any] = {
            "messages": [{"role": "assistant", "content": turn.action}, *answers],
            "spans": turn.spans,
            "reward_terms": terms,
            "process_reward": float(process_reward),
            "tool_calls": reply.tool_calls,
            "metrics": reply.metrics,
            "error": reply.error,
        }
        if over:
            info["is_success"] = reply.success
        if tokens:
            info["token_ids"] = [*turn.action_ids, *turn.answer_ids]
            info["token_spans"] = turn.token_spans if turn.answer_ids else turn.token_spans[:1]
        return info
