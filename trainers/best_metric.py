"""The metric that chooses the best checkpoint is checked before the first rollout.

The settings know the metrics that every evaluation has (common.py). The metrics of an environment, `env/NAME` and
`reward/TERM`, are known only when an episode has ended. So the environment's expert plays one episode, and a policy
that writes only "?" plays another.
"""

from __future__ import annotations

import itertools
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import agent_gym
from agent_gym.errors import ConfigError

_MOST = 64  # turns
_OF_ENV = re.compile(r"(?:^|[_/])((?:env|reward)/.+)$")


def check_best_metric(trainer: Any) -> None:
    """Raise `ConfigError` if a trainer's metric for the best model names an environment's metric that none has.

    An environment without an expert is not checked: there the first evaluation reports the error.
    """
    metric = trainer.args.metric_for_best_model
    named = _OF_ENV.search(metric or "")
    sets = trainer.eval_dataset
    if named is None or sets is None:
        return
    found = set[str]()
    for rows in sets.values() if isinstance(sets, Mapping) else [sets]:
        for row in _first_rows(rows):
            names = _names(row)
            if names is None:
                return
            found |= names
    if named[1] not in found:
        known = ", ".join(sorted(found)) or "none"
        raise ConfigError(
            f"metric_for_best_model is {metric!r}, which no episode of the evaluation has; it has: {known}, and all "
            "that every evaluation has"
        )


def _first_rows(rows: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the first task of each environment in a data set."""
    seen = set[tuple[str, str]]()
    for place, key in enumerate(zip(rows["env_id"], rows["env_kwargs"], strict=True)):
        if key not in seen:
            seen.add(key)
            yield rows[place]


def _names(row: Mapping[str, Any]) -> set[str] | None:
    """Return the names of an environment's metrics and terms; None if its expert cannot be asked."""
    found = set[str]()
    try:
        with closing(agent_gym.make(row["env_id"], **json.loads(row["env_kwargs"]))) as env:
            inner: Any = env.unwrapped
            for turns in (iter(lambda: inner.expert_action(), None), itertools.repeat("?")):
                env.reset(seed=row["seed"], options={"split": row["split"], "index": row["index"]})
                for turn in itertools.islice(turns, _MOST):
                    *_, terminated, truncated, info = env.step(turn)
                    found |= {f"env/{name}" for name in info.get("metrics", ())}
                    found |= {f"reward/{name}" for name in info.get("reward_terms", ())}
                    if terminated or truncated:
                        break
    except Exception as error:  # any error of the environment, which its first rollout reports
        if not isinstance(error, ConfigError):
            warnings.warn(
                f"the metrics of {row['env_id']} are not known before its first episode: {error}", stacklevel=2
            )
        return None
    return found
