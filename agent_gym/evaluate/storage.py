"""Episodes of an evaluation on disk: each written as it ends, so that a run that was killed can go on.

A line is a record of `agent_gym.rollout.trajectories` with two entries more: `policy`, a name for who played, and
`settings`, what decides the outcome besides the episode's spec. A file may hold several policies and environments.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.rollout import Episode, EpisodeSpec, from_record, read_trajectories, to_record

Key = tuple[Any, ...]


class EpisodeFile:
    """A trajectory file that grows.

    Args:
        path: the file; its folder is made if need be.
        resume: go on with what it holds. The last line may be cut off, by a kill; episodes that failed by a fault of
            the machinery are taken out, to be played again.

    Raises:
        ConfigError: if the file has content and is not to be resumed, cannot be read or cannot be written.
    """

    def __init__(self, path: str | Path, *, resume: bool = False) -> None:
        """Read what is there."""
        self.path = Path(path)
        self._records: list[dict[str, Any]] = []
        self._settings: dict[str, Any] = {}
        self._policy, self._tokenizer = "", None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists() and self.path.stat().st_size:
                if not resume:
                    raise ConfigError(f"{self.path} has episodes already: go on with --resume, or name another file")
                self._read()
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {self.path}: {error.strerror}") from error

    def begin(
        self, policy: str, settings: Mapping[str, Any], specs: Sequence[EpisodeSpec], tokenizer: Any = None
    ) -> tuple[list[Episode], list[EpisodeSpec]]:
        """Start, or go on with, one policy in one environment.

        Args:
            policy: who plays.
            settings: what else decides the outcome; JSON values.
            specs: all episodes that are to be in the file, of one environment.
            tokenizer: adds the text of each token to the records when given.

        Returns:
            The episodes that the file has, and the specs of the others.

        Raises:
            ConfigError: if the file's episodes of this policy and environment were played under other settings, or are
                not among the specs.
        """
        self._policy, self._settings, self._tokenizer = policy, json.loads(json.dumps(settings)), tokenizer
        wanted = {_key(spec): spec for spec in specs}
        found: dict[Key, Episode] = {}
        env_ids = {spec.env_id for spec in specs}
        for record in self._records:
            if record.get("policy") != policy or record["spec"]["env_id"] not in env_ids:
                continue
            self._check(record)
            episode = from_record(record)
            key = _key(episode.spec)
            if key not in wanted:
                raise ConfigError(
                    f"{self.path} holds {record['task_id']} (attempt {episode.spec.member + 1}), which this run would "
                    "not play: give at least as many --episodes and --samples as before, or another file"
                )
            if key in found:
                raise ConfigError(f"{self.path} holds {record['task_id']} twice for {policy}; it cannot be resumed")
            # With the spec as it is here: JSON has made lists of tuples.
            episode.spec = wanted[key]
            found[key] = episode
        return list(found.values()), [spec for key, spec in wanted.items() if key not in found]

    def write(self, episode: Episode) -> None:
        """Append a finished episode."""
        record = to_record(episode, self._tokenizer, policy=self._policy, settings=self._settings)
        # In one piece and at once: a kill then costs at most the line that is being written.
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; one without an episode is removed."""
        self._file.close()
        if not self.path.stat().st_size:
            self.path.unlink()

    def _read(self) -> None:
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(self.path, whole)
        records = list(read_trajectories(self.path))
        self._records = [record for record in records if record["failure"] is None]
        if len(self._records) < len(records):
            beside = self.path.with_name(self.path.name + ".new")
            beside.write_text("".join(json.dumps(record) + "\n" for record in self._records), encoding="utf-8")
            beside.replace(self.path)

    def _check(self, record: Mapping[str, Any]) -> None:
        stored = record.get("settings", {})
        for name in {**stored, **self._settings}:
            then, now = stored.get(name), self._settings.get(name)
            if then != now:
                raise ConfigError(
                    f"{self.path} was played with {name} {json.dumps(then)}, now it is {json.dumps(now)}: "
                    "resume with the same settings, or name another file"
                )


def _key(spec: EpisodeSpec) -> Key:
    return spec.env_id, spec.split, spec.index, spec.member
