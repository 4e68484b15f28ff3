"""The roles of one episode taken apart, so that each can be trained on as a separate episode.

In self-play the policy plays several roles of a game (`agent_gym.players`). While it is played the game is one episode,
with a row for each role. Rewards, baselines and groups are a role's own: what one role earned says nothing of another,
and in a game of opponents the sum over the roles does not even change.
"""

from __future__ import annotations

from dataclasses import replace

from agent_gym.reply import sum_by_name
from agent_gym.rollout.episode import Episode, Row
from agent_gym.transcript import PROMPT_STEP

ROLE_GROUPS = 1 << 40
"""How far apart the numbers of the groups are in which the roles of an episode are compared."""


def by_role(episode: Episode) -> list[Episode]:
    """Return an episode for each role that the policy played: its row, steps, messages and rewards.

    An episode without roles is returned as it is. A role that never acted has none, unless the episode failed. Members
    of a group are compared by role (`EpisodeSpec.group` is moved by `ROLE_GROUPS`).
    """
    if not episode.roles:
        return [episode]
    return [
        _part(episode, role, number)
        for number, role in enumerate(episode.roles)
        if episode.failure or any(step.row == episode.rows_of.get(role) for step in episode.steps)
    ]


def _part(episode: Episode, role: str, number: int) -> Episode:
    place = episode.rows_of.get(role)
    mine = [k for k, step in enumerate(episode.steps) if step.row == place]
    steps = []
    for k, following in zip(mine, [*mine, len(episode.steps)][1:], strict=True):
        # A turn of this role, and the others' turns up to its next one, which may pay it, too. The role sees the last
        # text before it acts again, and nothing after its last turn, if another role ended the game. The metrics at the
        # end of the game belong to each role.
        step, *others = turns = episode.steps[k:following]
        over = following == len(episode.steps)
        terms = sum_by_name(turn.role_terms.get(role, {}) for turn in turns)
        steps.append(
            replace(
                step,
                row=0,
                observation="" if over and others else turns[-1].observation,
                reward=sum(terms.values()),
                reward_terms=terms,
                metrics=turns[-1].metrics if over else step.metrics,
                process_reward=sum(turn.role_process.get(role, 0.0) for turn in turns),
                role_terms={},
                role_process={},
            )
        )
    new = {PROMPT_STEP: PROMPT_STEP} | {k: n for n, k in enumerate(mine)}
    return replace(
        episode,
        spec=replace(episode.spec, role=role, group=episode.spec.group + number * ROLE_GROUPS),
        rows=[_renumbered(row, new) for row in episode.rows[place : place + 1]] if place is not None else [],
        steps=steps,
        messages=[message for message in episode.messages if message.get("player") == role],
        roles=(),
        rows_of={},
    )


def _renumbered(row: Row, new: dict[int, int]) -> Row:
    return replace(row, spans=[span._replace(step=new[span.step]) for span in row.spans])
