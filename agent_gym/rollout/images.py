"""Images in a rollout: where the world shows them, and what a policy is handed of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_gym.chat import ChatRenderer
from agent_gym.errors import ConfigError
from agent_gym.images import Shown
from agent_gym.rollout.contexts import AppendContext, Context
from agent_gym.rollout.envs import close_env, make_env
from agent_gym.rollout.episode import Episode


def shows_images(env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> bool:
    """Say whether an environment shows images (`TextEnv.shows_images`), and so needs a model that reads them."""
    env = make_env(env_id, env_kwargs)
    shown = bool(env.get_wrapper_attr("shows_images"))
    close_env(env)
    return shown


def images_in(info: Mapping[str, Any], renderer: ChatRenderer, sampled: Sequence[int] = ()) -> list[Shown]:
    """Find the images in what `reset` or `step` reported.

    Args:
        info: what the environment reported.
        renderer: wrote its ids.
        sampled: the ids at its beginning that the policy sampled; there is no image in those.
    """
    if renderer.vision is None:
        return []
    shown = renderer.vision.place(info["token_ids"][len(sampled) :], info["messages"])
    return [image.moved(len(sampled)) for image in shown]


def context_of(
    episode: Episode, begun: Sequence[int], renderer: ChatRenderer, context: Context
) -> tuple[list[int], list[Shown]]:
    """Return the ids and images of a policy's next prompt.

    Args:
        episode: whose last row it is.
        begun: what the policy has written of its turn.
        renderer: wrote the row.
        context: made it.

    Raises:
        ConfigError: if there are images in a context that is more than appended to: where they stand is known of whole
            rows, and not of turns that are quoted in another.
    """
    row = episode.rows[-1]
    ids = [*row.token_ids, *begun]
    if renderer.vision is None:
        return ids, []
    if row.images and not isinstance(context, AppendContext):
        raise ConfigError(
            f"{episode.spec.env_id} shows images, which only the context 'append' carries along: leave context out"
        )
    return renderer.vision.readable(ids, row.images), [*row.images]
