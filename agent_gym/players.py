"""`PlayersEnv`: a game of several roles, each with a conversation, and its secrets.

A `Game` knows the rules and nothing of models. Who plays a role is a setting. The policy plays one and something else
the others, a script or another model at an endpoint; or, with `opponent="self"`, the policy plays them all. Then each
role has its own transcript. Its text has the source `agent:ROLE`, and the text of others is the world's, `env:OTHER`.
So each token that was sampled is trained once, in the row of its role.

There is one policy. Two that are trained at once need two optimizers, two engines and two sets of weights in one
trainer; here the other model is at an endpoint, and the runs take turns.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from agent_gym.chat import Message
from agent_gym.env import Reply, TextEnv
from agent_gym.errors import ConfigError, EnvFailure, described, one_of, require
from agent_gym.reply import sum_by_name
from agent_gym.transcript import Transcript, kind_of

SELF = "self"
_TOKENS = 256  # of an action of a served opponent


class Game:
    """The rules of a game in turns. A subclass defines `roles`, `opening`, `act` and `terms`.

    Attributes:
        role: who acts next, "" when the game is over.
        success: whether it ended as it should.
        metrics: numbers for the log.
    """

    roles: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self.role = self.roles[0]
        self.success = False
        self.metrics: dict[str, float] = {}
        self.spoken: list[tuple[str, str]] = []  # author and text
        self._heard = dict.fromkeys(self.roles, 0)

    def opening(self, role: str) -> str:
        """Return the knowledge of a role before it acts."""
        raise TypeError(f"{type(self).__name__} has to define opening(role)")

    def act(self, text: str) -> str | None:
        """Let `role` act, and set who acts next. A text that is not an action costs a turn; a complaint is returned."""
        raise TypeError(f"{type(self).__name__} has to define act(text)")

    def terms(self, role: str) -> dict[str, float]:
        """Return the raw reward terms of a role when the game is over."""
        raise TypeError(f"{type(self).__name__} has to define terms(role)")

    def news(self, role: str) -> tuple[str, str]:
        """Return the last speaker, and the texts that others wrote since this was last asked for a role."""
        fresh = [(who, text) for who, text in self.spoken[self._heard[role] :] if who != role]
        self._heard[role] = len(self.spoken)
        return fresh[-1][0] if fresh else "", "\n".join(text for _, text in fresh)


Player = Callable[[Any, str], str]
"""From a game and the role to play to an action. A script may read the game; its knowledge is its author's choice."""


class PlayersEnv(TextEnv):
    """Plays a `Game`. A subclass defines `start(task)`, which begins one, and `players`.

    Args:
        tasks: see `TextEnv`.
        opponent: who plays the roles that the policy does not: a name in `players`, the address of an OpenAI-compatible
            server ("http://127.0.0.1:8000/v1", followed by "#MODEL" where it serves several), or "self": the policy
            itself plays all of them.
        role: the role of the policy; None for that of `role_of`.
        **kwargs: see `TextEnv`.

    Raises:
        ConfigError: for an opponent or a role that does not exist.
    """

    players: ClassVar[Mapping[str, Player]] = {}
    """Opponents by name; `expert_action` plays the first one."""
    roles: ClassVar[tuple[str, ...]] = ()
    game: Game

    def __init__(
        self, tasks: Mapping[str, Sequence[Any]], *, opponent: str, role: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(tasks, **kwargs)
        if not (opponent in (*self.players, SELF) or str(opponent).startswith(("http://", "https://"))):
            known = ", ".join((*self.players, SELF))
            raise ConfigError(f"opponent is {opponent!r}; allowed: {known}, or the address of a model server")
        self._opponent_name, self._wanted = opponent, one_of("role", role, (*self.roles, None))
        self.role = ""
        self.played: tuple[str, ...] = ()
        self._books: dict[str, Transcript] = {}

    def start(self, task: Any) -> Game:
        """Begin a game; randomness comes from `self.np_random`."""
        raise TypeError(f"{type(self).__name__} has to define start(task)")

    def role_of(self, task: Any) -> str:
        """Return the role of the policy where none was asked for; by default a random one."""
        return self.roles[int(self.np_random.integers(len(self.roles)))]

    def begin(self, task: Any) -> str:
        self.game = self.start(task)
        self.played = self.roles if self._opponent_name == SELF else (self._wanted or self.role_of(task),)
        served = self._opponent_name not in (*self.players, SELF)
        self._opponent = (
            ServedPlayer(self._opponent_name, self.system_prompt) if served else self.players.get(self._opponent_name)
        )
        self._books, self._paid = {}, dict[str, dict[str, float]]()
        self._let_others_act()
        return self._take_turn()[1]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode: as `TextEnv`, with `info["role"]`, and in self-play `info["roles"]`."""
        observation, info = super().reset(seed=seed, options=options)
        several = {"roles": [*self.played]} if len(self.played) > 1 else {}
        return observation, info | {"role": self.role} | several

    def respond(self, action: str) -> Reply:
        game = self.game
        complaint = game.act(action)
        self._let_others_act()
        over = not game.role
        self._paid = {role: game.terms(role) for role in self.played} if over else {}
        who, text = "", ""
        if complaint and not over:
            text = complaint
        elif not self._waits:
            who, text = game.news(self.role)
        return Reply(
            text,
            terms=sum_by_name(self._paid.values()),
            terminated=over,
            success=over and game.success,
            metrics={**game.metrics},
            error=complaint,
            source=f"env:{who}" if who else "env",
        )

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Let the role whose turn it is act.

        In self-play the observation is the text that the next role reads. `info` has the tokens of the role that acted,
        and in "next" the role that acts next, with the messages, token_ids and token_spans that its own transcript
        gains. The reward is the sum over all roles; "role_terms" has each role's terms, and "role_process" each role's
        process reward.
        """
        observation, reward, terminated, truncated, info = super().step(action)
        if len(self.played) > 1:
            info["role_terms"] = {
                role: {name: self.weights[name] * value for name, value in paid.items()}
                for role, paid in self._paid.items()
            }
            info["role_process"] = {
                role: sum([paid for name, paid in terms.items() if name in self.process_terms], 0.0)
                for role, terms in info["role_terms"].items()
            }
            if not (terminated or truncated) and self.game.role != self.role:
                observation, info["next"] = self._pass_on()
        return observation, reward, terminated, truncated, info

    @property
    def _waits(self) -> bool:
        """Whether this transcript waits for another role of the policy, which acts next."""
        return bool(self.game.role) and self.game.role != self.role

    def _let_others_act(self) -> None:
        while self.game.role and self.game.role not in self.played:
            assert self._opponent is not None
            self.game.act(self._opponent(self.game, self.game.role))

    def _take_turn(self) -> tuple[str, str]:
        """Turn to the transcript of the role that acts next; returns the speaker, and the text that the role reads."""
        role = self.role = self.game.role
        self.author = f"agent:{role}"
        opening = "" if role in self._books else self.game.opening(role)
        self.transcript = self._books.setdefault(role, Transcript())
        who, news = self.game.news(role)
        return who, "\n\n".join(filter(None, [opening, news]))

    def _pass_on(self) -> tuple[str, dict[str, Any]]:
        known = self.game.role in self._books
        who, text = self._take_turn()
        if not known:
            messages, observation = self._first_messages(text)
            return observation, self._begin_transcript(messages) | {"role": self.role}
        messages, observation = self.as_messages(Reply(text))
        mine = next(one for one in reversed(self.transcript.segments) if kind_of(one.source) == "agent")
        past = self.transcript.messages[:-1]  # without the turn that is answered
        ids = [] if self.renderer is None else self.renderer.reply(mine.token_ids, messages, past=past)
        self.transcript.messages += messages
        answer = self.transcript.append(f"env:{who}", mine.step, observation, ids)
        info: dict[str, Any] = {"role": self.role, "messages": messages, "spans": [answer.span]}
        if self.renderer is not None:
            info |= {"token_ids": [*ids], "token_spans": [answer.token_span]}
        return observation, info

    def _token_ids(
        self, action: str, text: str, answers: list[Message], observation: str, terminated: bool
    ) -> tuple[Sequence[int], Sequence[int]]:
        return super()._token_ids(action, text, answers, observation, terminated or self._waits)

    def as_messages(self, reply: Reply) -> tuple[list[Message], str]:
        return ([], "") if self._waits else super().as_messages(reply)

    def expert_action(self) -> str:
        return next(iter(self.players.values()))(self.game, self.game.role)


class ServedModel:
    """A model on an OpenAI-compatible server, which takes a part in an environment.

    The key is the environment's OPENAI_API_KEY.

    Args:
        address: of the server, followed by "#MODEL" where it serves several.
        part: who it is, for messages.
    """

    def __init__(self, address: str, part: str) -> None:
        openai = require("openai", "serve")
        self._part = part
        url, _, self._model = address.partition("#")
        key, direct = os.environ.get("OPENAI_API_KEY") or "none", openai.DefaultHttpxClient(trust_env=False)
        self._client = openai.OpenAI(base_url=url, api_key=key, http_client=direct)  # through no proxy

    def answer(self, talk: Sequence[Message], **settings: Any) -> Any:
        """Return the model's message; `EnvFailure` where the server fails."""
        try:
            if not self._model:
                served = [model.id for model in self._client.models.list().data]
                if len(served) != 1:
                    raise ValueError(f"it serves {', '.join(served)}: append one to the address (URL#NAME)")
                (self._model,) = served
            given: Any = {"model": self._model, "messages": talk, **settings}
            return self._client.chat.completions.create(**given).choices[0].message
        except Exception as error:
            raise EnvFailure(f"{self._part} did not answer: {described(error)}") from error


class ServedPlayer:
    """Another model as an opponent, on an OpenAI-compatible server. It reads the texts of its role.

    A server that fails or answers nothing fails the episode.
    """

    def __init__(self, address: str, rules: str) -> None:
        self._rules, self._model = rules, ServedModel(address, "the opponent")
        self._talk: dict[str, list[Message]] = {}

    def __call__(self, game: Game, role: str) -> str:
        opening = "" if role in self._talk else "\n\n".join(filter(None, [self._rules, game.opening(role)]))
        talk = self._talk.setdefault(role, [])
        text = "\n\n".join(filter(None, [opening, game.news(role)[1]]))
        talk.append({"role": "user", "content": text or "That was no action."})  # it acts again, no other role spoke
        text = str(self._model.answer(talk, max_tokens=_TOKENS).content or "")
        talk.append({"role": "assistant", "content": text})
        return text
