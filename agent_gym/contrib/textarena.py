"""TextArena (github.com/LeonGuertler/TextArena): its games of one player, or of two with a fixed opponent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from agent_gym.contrib.gymnasium import SEEDS, OwnRandomness
from agent_gym.env import Reply, TextEnv
from agent_gym.errors import ConfigError, EnvFailure, described, require, shown, where_raised
from agent_gym.tool_results import MAX_RESULT_CHARS, checked_limit, cut_text

Opponent = Callable[[str, np.random.Generator], str]
"""From the game's text since its last turn to its action; whatever it draws comes from the generator."""
_MOVES = 1000  # of the opponent in a row


class FromTextArena(TextEnv):
    """A game of TextArena's.

        gymnasium.register("Arena/Guess-v0", entry_point=FromTextArena, kwargs={"game": "GuessTheNumber-v0"})

    ## Description
    The policy is player 0. A task is a seed, and a split a range of them.

    ## Observation
    The game's text for player 0 since its last turn, a line per message, "[GAME]" or the player before it. TextArena's
    wrappers show all of it again each turn; here the conversation has it already.

    ## Action
    As the game's rules say, mostly a move in square brackets.

    ## Reward
    `reward` (weight 1): the game's own for player 0, at its end; mostly 1 for a win, -1 for a loss, and parts between.

    ## Episode end
    `terminated` when the game is over. `is_success` is a reward of at least `success_reward`. A game that ends by an
    invalid move of the opponent is not a win: it is an `EnvFailure`, as is an opponent that raises.

    Args:
        game: an id of TextArena's, as "Wordle-v0".
        opponent: plays player 1, in games of two.
        game_kwargs: arguments of the game.
        success_reward: see above.
        max_chars: longer observations are cut, with a mark at their end; at least 100.
        **kwargs: see `TextEnv`.

    Raises:
        ConfigError: if TextArena is not installed, cannot make the game, or it is not for so many players.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"reward": 1.0}

    def __init__(
        self,
        game: str,
        *,
        opponent: Opponent | None = None,
        game_kwargs: Mapping[str, Any] | None = None,
        success_reward: float = 1.0,
        max_chars: int = MAX_RESULT_CHARS,
        **kwargs: Any,
    ) -> None:
        arena = require("textarena", "textarena")
        self._randomness, self._opponent, self._players = OwnRandomness(), opponent, 1 if opponent is None else 2
        self._success_reward, self._max_chars = success_reward, checked_limit(max_chars)
        if not (opponent is None or callable(opponent)):
            raise ConfigError(f"opponent is {shown(opponent)}; it must be a function of an observation and a generator")
        try:
            with self._randomness.used():
                self._game = arena.make(f"{game}-raw", **(game_kwargs or {}))
                self._game.reset(num_players=self._players, seed=0)
        except AssertionError as error:
            have = "give opponent=, a function that plays player 1" if opponent is None else "leave opponent= out"
            raise ConfigError(f"{game} is not for {self._players} player(s): {error}; {have}") from error
        except Exception as error:
            raise ConfigError(f"TextArena cannot make {game!r}: {described(error)}") from error
        super().__init__(SEEDS, **{"max_turns": 100, **kwargs})

    def begin(self, task: Any) -> str:
        with self._randomness.used():
            self._game.reset(num_players=self._players, seed=int(task))
            return self._until_our_turn()

    def respond(self, action: str) -> Reply:
        with self._randomness.used():
            done, _ = self._game.step(action)
            text = "" if done else self._until_our_turn()
            rewards, about = self._game.close() if self._game.state.done else (None, {})
        if rewards is None:
            return Reply(text)
        reward = float(rewards[0])
        last = about.get(0, {}).get("reason") or ""
        return Reply(last, terms={"reward": reward}, terminated=True, success=reward >= self._success_reward)

    def _until_our_turn(self) -> str:
        """Let the opponent play and return the text for player 0; the game may be over then."""
        for _ in range(_MOVES):
            player, lines = self._game.get_observation()
            names = self._game.state.role_mapping
            # The policy's own moves are in its turns already.
            lines = [f"[{names.get(who, who)}] {text}" for who, text, _ in lines if who != player]
            if player == 0 or self._game.state.done:
                return cut_text("\n".join(lines), self._max_chars)
            self._let_opponent_move("\n".join(lines))
        raise EnvFailure(f"the opponent played {_MOVES} moves and it is never the policy's turn")

    def _let_opponent_move(self, seen: str) -> None:
        """Let player 1 move; `EnvFailure` if it raises, or loses the game by a move that is none."""
        assert self._opponent is not None
        name = getattr(self._opponent, "__qualname__", None) or type(self._opponent).__qualname__
        try:
            move = self._opponent(seen, self.np_random)
        except Exception as error:
            place = where_raised(error)
            raise EnvFailure(f"the opponent {name} raised {described(error)} ({place})") from error
        if not isinstance(move, str):
            raise ConfigError(f"the opponent {name} returned {shown(move)}; it must return a text, its move")
        self._game.step(move)
        state = self._game.state
        if state.done and state.game_info.get(1, {}).get("invalid_move"):
            reason = " ".join(str(state.game_info[1].get("reason")).split())
            raise EnvFailure(f"the opponent {name} lost by an invalid move, {move[:80]!r}: {reason:.200}")
