"""TextArena (github.com/LeonGuertler/TextArena): its games of one player, or of more with opponents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from agent_gym.contrib.gymnasium import SEEDS, OwnRandomness
from agent_gym.env import Reply, TextEnv
from agent_gym.errors import ConfigError, EnvFailure, described, require, shown, where_raised, whole_number
from agent_gym.players import Game, ServedPlayer
from agent_gym.tool_results import MAX_RESULT_CHARS, checked_limit, cut_text

Opponent = Callable[[str, np.random.Generator], str]
"""From the game's text since its last turn to its action; whatever it draws comes from the generator."""
_MOVES = 1000  # of opponents in a row
_MOST_PLAYERS = 15  # in TextArena 0.7.4


class FromTextArena(TextEnv):
    """A game of TextArena's.

        agent_gym.make("AgentR1/TextArena-v0", game="GuessTheNumber-v0")

    ## Description
    The policy is player 0, and an opponent plays each of the others. A task is a seed, and a split a range of them.

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

    ## Arguments
    - `game`: an id of TextArena's, as "Wordle-v0".
    - `opponent`: plays the other players: a function of the text that a player sees and a generator, or the address of
      an OpenAI-compatible server, as "http://127.0.0.1:8000/v1" or, followed by "#MODEL", of one of its models. Each
      player has a conversation of its own with it.
    - `players`: how many play; by default the fewest of two or more that the game takes with an opponent.
    - `game_kwargs`: arguments of the game.
    - `success_reward`: see above (1).
    - `max_chars`: longer observations are cut, with a mark at their end; at least 100.
    - everything `TextEnv` takes: split, system_prompt, max_turns, reward_weights, tokenizer, render_mode.

    ## References
    TextArena (arXiv:2504.11442).

    ## Versions
    v0: first version.

    Raises:
        ConfigError: if TextArena is not installed, cannot make the game, or it is not for so many players.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"reward": 1.0}

    def __init__(
        self,
        game: str | None = None,
        *,
        opponent: Opponent | str | None = None,
        players: int | None = None,
        game_kwargs: Mapping[str, Any] | None = None,
        success_reward: float = 1.0,
        max_chars: int = MAX_RESULT_CHARS,
        **kwargs: Any,
    ) -> None:
        if game is None:
            raise ConfigError("give game=, the id of a game of TextArena's, as game='GuessTheNumber-v0'")
        arena = require("textarena", "textarena")
        self._randomness, self._opponent = OwnRandomness(), opponent
        self._success_reward, self._max_chars = success_reward, checked_limit(max_chars)
        served = isinstance(opponent, str) and opponent.startswith(("http://", "https://"))
        if not (opponent is None or callable(opponent) or served):
            wanted = "a function of an observation and a generator, or the address of a model server"
            raise ConfigError(f"opponent is {shown(opponent)}; it must be {wanted}")
        fewest = 1 if opponent is None else 2
        if players is not None:
            fewest = whole_number("players", players, fewest, 1 if opponent is None else _MOST_PLAYERS)
        most = fewest if players is not None or opponent is None else _MOST_PLAYERS
        try:
            with self._randomness.used():
                self._game = arena.make(f"{game}-raw", **(game_kwargs or {}))
                self._players = self._count(fewest, most)
        except AssertionError as error:
            have = "give opponent=, which plays the others" if opponent is None else "leave opponent= or players= out"
            raise ConfigError(f"{game} is not for {fewest} player(s): {error}; {have}") from error
        except Exception as error:
            raise ConfigError(f"TextArena cannot make {game!r}: {described(error)}") from error
        super().__init__(SEEDS, **{"max_turns": 100, **kwargs})

    def _count(self, fewest: int, most: int) -> int:
        """Return the first number of players that the game takes; the first `AssertionError` if it takes none."""
        refused: Exception | None = None
        for players in range(fewest, most + 1):
            try:
                self._game.reset(num_players=players, seed=0)
                return players
            except (AssertionError, ValueError) as error:  # two games say it in the other way
                refused = refused or error
        raise AssertionError(refused)

    def begin(self, task: Any) -> str:
        self._served = ServedPlayer(self._opponent, "") if isinstance(self._opponent, str) else None
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
            self._let_opponent_move(player, "\n".join(lines))
        raise EnvFailure(f"the opponent played {_MOVES} moves and it is never the policy's turn")

    def _let_opponent_move(self, player: int, seen: str) -> None:
        """Let another player move; `EnvFailure` if its opponent raises, or loses the game by a move that is none."""
        name = getattr(self._opponent, "__qualname__", None) or type(self._opponent).__qualname__
        if self._served is not None:
            name, move = str(self._opponent), self._served(_Table(seen), str(player))
        else:
            assert callable(self._opponent)
            try:
                move = self._opponent(seen, self.np_random)
            except Exception as error:
                place = where_raised(error)
                raise EnvFailure(f"the opponent {name} raised {described(error)} ({place})") from error
        if not isinstance(move, str):
            raise ConfigError(f"the opponent {name} returned {shown(move)}; it must return a text, its move")
        self._game.step(move)
        state = self._game.state
        if state.done and state.game_info.get(player, {}).get("invalid_move"):
            reason = " ".join(str(state.game_info[player].get("reason")).split())
            raise EnvFailure(f"the opponent {name} lost by an invalid move, {move[:80]!r}: {reason:.200}")


class _Table(Game):
    """What one player reads, as `ServedPlayer` asks for it."""

    roles = ("",)

    def __init__(self, seen: str) -> None:
        super().__init__()
        self._seen = seen

    def opening(self, role: str) -> str:
        return ""

    def news(self, role: str) -> tuple[str, str]:
        return "", self._seen
