"""How full vLLM's cache of keys and values was: in this process from its scheduler, of servers from their metrics.

A cache that is full throws a running request out (a preemption), whose keys and values are computed anew later.
"""

from __future__ import annotations

import re
from typing import Any

# As vLLM names them on /metrics (vllm 0.31, v1/metrics/loggers.py); one line for each of its engines.
_USED = re.compile(r"^vllm:kv_cache_usage_perc\{.*?\} (\S+)$", re.MULTILINE)
_PREEMPTED = re.compile(r"^vllm:num_preemptions_total\{.*?\} (\S+)$", re.MULTILINE)


class CacheLoad:
    """The largest share of a cache in use, and the preemptions, since the last `take`."""

    def __init__(self) -> None:
        self._used, self._preempted = 0.0, 0.0
        self._before: dict[str, float] = {}  # preemptions since its start, by server

    def see(self, used: float) -> None:
        self._used = max(self._used, used)

    def read(self, server: str, published: str) -> None:
        """Take a server's metrics; its first word is where its preemptions are counted from."""
        self.see(max(map(float, _USED.findall(published)), default=0.0))
        count = sum(map(float, _PREEMPTED.findall(published)))
        self._preempted += count - self._before.get(server, count)
        self._before[server] = count

    def count_preemptions(self, scheduler: Any) -> None:
        """Count the preemptions of an engine in this process; vLLM publishes them only with all its statistics."""
        preempt = scheduler._preempt_request

        def counted(*args: Any, **kwargs: Any) -> Any:
            self._preempted += 1
            return preempt(*args, **kwargs)

        scheduler._preempt_request = counted

    def take(self) -> dict[str, float]:
        """Return the metrics `perf/kv_cache` and `perf/preemptions`, and begin anew."""
        load = {"perf/kv_cache": self._used, "perf/preemptions": self._preempted}
        self._used = self._preempted = 0.0
        return load
