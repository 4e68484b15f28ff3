"""Episodes on disk: each written as it ends, so that a run that was killed can be resumed.

A line is a record of `agent_gym.rollout.trajectories` with two entries more: `policy`, a name for who played, and
`settings`, the values that decide the outcome besides the episode's spec. A file may hold several policies and
environments.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_gym.errors import ConfigError, writing
from agent_gym.public import public
from agent_gym.rollout import Episode, EpisodeSpec, from_record
from agent_gym.rollout.trajectories import scan_trajectories, to_line, to_record, write_trajectories

CARDS = ".card.json"  # the suffix of the file with the cards of an episode file (cards.py)
MODEL = "model_sha256"  # the setting that tells two contents of one model folder apart
_PLACE = re.compile(" at 0x[0-9a-f]+")
_BEGINNING = to_line({"version": 1})[:-3].encode()  # of each line


class EpisodeFile:
    """A trajectory file that grows.

    With `resume` its episodes are kept. The last line may be cut off, by a kill; episodes that failed by a fault of the
    machinery are taken out, to be played again. `asked` and `finished` are how many episodes of the policies and
    environments that have begun are to be in it, and are.

    Raises:
        ConfigError: if the file has content and is not to be resumed, is not such a file, is being written by another
            process, or cannot be read or written.
    """

    def __init__(self, path: str | Path, *, resume: bool = False) -> None:
        self.path = Path(path)
        self.asked = self.finished = 0
        self._records: list[dict[str, Any]] = []
        if resume and self.path.exists() and not self.path.is_file():  # a pipe would wait for its other end
            raise ConfigError(f"{self.path} is no regular file, and cannot be resumed; name another file")
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
            try:
                if os.fstat(self._file.fileno()).st_size:
                    if not resume:
                        raise ConfigError(
                            f"{self.path} is there already and has content: continue it with --resume, or name "
                            "another file"
                        )
                    self._read()
                elif self.path.is_file():
                    self.path.with_suffix(CARDS).unlink(missing_ok=True)  # locks of a file that is gone
            except BaseException:
                self.close()
                raise

    def begin(
        self, policy: str, settings: Mapping[str, Any], specs: Sequence[EpisodeSpec], tokenizer: Any = None
    ) -> tuple[list[Episode], list[EpisodeSpec]]:
        """Start, or resume, one policy in one environment; return the episodes it has, and the specs of the others.

        `settings` are JSON values that decide the outcome, too, and `specs` all episodes that are to be in the file. A
        tokenizer adds the text of each token to the records.

        Raises:
            ConfigError: if the file's episodes of this policy and environment were played under other settings, or are
                not among the specs.
        """
        self._policy, self._settings, self._tokenizer = policy, public(json.loads(to_line(settings))), tokenizer
        wanted = {_key(spec): spec for spec in specs}
        env_ids = {spec.env_id for spec in specs}
        found: dict[Any, Episode] = {}
        for record in self._records:
            if record["policy"] != policy or record["spec"]["env_id"] not in env_ids:
                continue
            self._compare(record["settings"], self._settings)
            episode = from_record(record)
            key = _key(episode.spec)
            if key not in wanted:
                raise ConfigError(
                    f"{self.path} holds {record['task_id']} (attempt {episode.spec.member + 1}), which this run would "
                    "not play: ask for at least as many episodes and attempts as before, or name another file"
                )
            if key in found:
                raise ConfigError(f"{self.path} holds {record['task_id']} twice for {policy}; it cannot be resumed")
            self._compare(_decides(episode.spec), _decides(wanted[key]))
            # With the spec as it is here: JSON has made lists of tuples.
            episode.spec = wanted[key]
            found[key] = episode
        self.asked += len(wanted)
        self.finished += len(found)
        return list(found.values()), [spec for key, spec in wanted.items() if key not in found]

    def _compare(self, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Raise `ConfigError` where an episode was played under other settings than now."""
        for name in {**then, **now}:
            if name == MODEL and name not in then:
                continue  # a file of 0.2, which did not write it, continues in its old form
            if then.get(name) != now.get(name):
                raise ConfigError(
                    f"{self.path} was played with {name} {json.dumps(then.get(name))}, now it is "
                    f"{json.dumps(now.get(name))}: resume with the same settings, or name another file"
                )

    def write(self, episode: Episode) -> None:
        """Append a finished episode.

        Raises:
            AgentGymError: as `writing`; the file then ends with the episode before.
        """
        record = to_record(episode, self._tokenizer, policy=self._policy, settings=self._settings)
        line = memoryview(to_line(record).encode())
        whole = os.fstat(self._file.fileno()).st_size
        # At once: a kill then costs at most the line that is being written.
        try:
            with writing(self.path):
                while line:
                    line = line[self._file.write(line) :]
        except BaseException:
            with suppress(OSError):  # a device cannot be cut
                self._file.truncate(whole)
            raise
        self.finished += 1

    def close(self) -> None:
        """Close the file; one without an episode is removed."""
        empty = self.path.is_file() and not os.fstat(self._file.fileno()).st_size
        self._file.close()
        if empty:
            self.path.unlink()

    def _open(self) -> None:
        self._file = self.path.open("ab", buffering=0)
        try:
            if self.path.is_file():
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise ConfigError(f"another process is writing {self.path}: wait for it, or name another file") from None
        except OSError:
            pass  # not every file system has locks

    def _read(self) -> None:
        """Read the records; cut off half a line at the end, and take out failed episodes."""
        failed = False
        for number, line, found in scan_trajectories(self.path):
            begun = line.startswith(_BEGINNING) or _BEGINNING.startswith(line)
            if not line.endswith(b"\n") and (number > 1 or begun):  # which only the last one can be
                self._file.truncate(os.fstat(self._file.fileno()).st_size - len(line))
            elif isinstance(found, str):
                raise ConfigError(f"{self.path}, line {number}: {found}; take the line out, or name another file")
            elif "settings" not in found or "policy" not in found:
                raise ConfigError(f"{self.path} was not written by eval or rollout; name another file")
            elif found["failure"] is not None:
                failed = True
            else:
                self._records.append(found)
        if failed:
            write_trajectories(self.path, self._records)
            with self._file:
                self._open()


def _decides(spec: EpisodeSpec) -> dict[str, Any]:
    """Return the settings that decide an episode besides its key, as JSON values without memory addresses."""
    values = {name: getattr(spec, name) for name in ("env_kwargs", "seed", "sampling_seed")}
    values["env_kwargs"] = public(values["env_kwargs"])  # as the file has them
    found: dict[str, Any] = json.loads(_PLACE.sub("", to_line(values)))
    return found


def _key(spec: EpisodeSpec) -> tuple[Any, ...]:
    return spec.env_id, spec.split, spec.index, spec.member
