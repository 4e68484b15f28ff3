"""A policy that is a plain function: experts, test doubles, a person at the keyboard.

It goes through the same door as the engines, so that whatever works with a script (rollouts, spans, masks,
the data for a warm start) works the same way with a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from agent_gym.policies.base import FinishReason, Generation, Request, check_request


class ScriptedPolicy:
    """Lets a function write every turn.

    Args:
        act: Called with the live episode (`Request.episode`) in the thread of its environment, returns the text of the
            turn.
        encode: Turns text into ids and appends the end of turn (the chat renderer's `encode_action`).

    The logprobs are 0.0: a script is certain of what it does. `max_tokens` and stop strings hold for a script
    as they do for a model, so an expert cannot show a turn that no policy could have produced.
    """

    continuous = True

    def __init__(self, act: Callable[[object], str], encode: Callable[[str], Sequence[int]]) -> None:
        self._act = act
        self._encode = encode
        self._queue: dict[int, Request] = {}

    @property
    def pending(self) -> int:
        """Requests submitted and neither returned nor aborted."""
        return len(self._queue)

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            ConfigError: When the id is taken or the prompt is empty.
        """
        check_request(request, self._queue, sees=True)
        self._queue[request.id] = request

    def poll(self) -> list[Generation]:
        """Answer every pending request. What `act` raises goes through, and drops that request."""
        finished = []
        while self._queue:
            finished.append(self._write(self._queue.pop(next(iter(self._queue)))))
        return finished

    def abort(self, request_id: int) -> None:
        """Drop a pending request; unknown ids are ignored."""
        self._queue.pop(request_id, None)

    def close(self) -> None:
        """Drop what is pending."""
        self._queue.clear()

    def _write(self, request: Request) -> Generation:
        # What a script asks of the environment, it asks in the thread where the environment lives.
        in_thread = getattr(request.episode, "in_thread", None)
        text = in_thread(partial(self._act, request.episode)) if in_thread else self._act(request.episode)
        reason: FinishReason = "stop"
        ends = [text.find(stop) + len(stop) for stop in request.params.stop if stop in text]
        if ends:
            reason = "stop_string"
            # A model that is stopped by a string never gets to sample its end of turn.
            ids = list(self._encode(text[: min(ends)]))
            ids = ids[: len(ids) - len(self._encode(""))]
        else:
            ids = list(self._encode(text))
        if len(ids) > request.params.max_tokens:
            reason = "length"
            ids = ids[: request.params.max_tokens]
        if request.on_token:
            for token in ids:
                request.on_token(token)
        return Generation(request.id, ids, [0.0] * len(ids), reason)
