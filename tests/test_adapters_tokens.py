"""The same actions give the same ids and the same mask in every trainer that is installed.

The policy is scripted: its turns are ids that no encoding of their text would give, a token per character, so that a
trainer which encodes a turn again is found out. Each trainer's own code builds the rest. SkyRL, verl and verifiers'
renderers are no part of the development installation: docs/adapters.md says which versions this was run with.
"""

from __future__ import annotations

import asyncio
import runpy
import sys
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import gymnasium
import pytest
import typing_extensions

trl = pytest.importorskip("trl")

from tiny import make_tiny_model, make_tiny_tokenizer  # noqa: E402

from agent_gym.chat import ChatRenderer  # noqa: E402
from agent_gym.contrib.lending import task_rows  # noqa: E402
from agent_gym.testing import expert_episode, policy_texts  # noqa: E402
from agent_gym.transcript import Sampled, kind_of  # noqa: E402

GSM8K, BISECT, BARGAIN = "AgentR1/GSM8K-v0", "AgentR1/Bisect-v0", "AgentR1/Bargain-v0"
KWARGS: dict[str, dict[str, Any]] = {GSM8K: {}, BISECT: {"max_turns": 20}, BARGAIN: {}}
TEMPLATE = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text()
PLAIN = """{% for one in messages %}<|im_start|>{{ one.role }}
{{ one.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""A template without tools, where the world's answers are user messages to our renderer and to all others."""


class Scripted:
    """The expert's turns of task 3 as ids, and what our environment makes of them."""

    def __init__(self, env_id: str, tokenizer: Any) -> None:
        self.env_id, self.row, renderer = env_id, task_rows(env_id, tasks=4)[3], ChatRenderer.of(tokenizer)
        reset = {"seed": self.row["seed"], "options": {"split": self.row["split"], "index": self.row["index"]}}
        expert = policy_texts(expert_episode(gymnasium.make(env_id), **reset))
        words = "Where is the commit?"  # numbers have one token each
        talks = {BISECT: [words, *expert], BARGAIN: [f"{words}\n{expert[0]}", *expert[1:]]}
        self.texts = talks.get(env_id, expert)
        self.turns = [[i for c in text for i in renderer.encode(c)] + [tokenizer.eos_token_id] for text in self.texts]
        assert self.turns[0] != renderer.encode_action(self.texts[0])
        env = gymnasium.make(env_id, tokenizer=renderer, **KWARGS[env_id])
        _, info = env.reset(**reset)
        self.prompt, self.ids, self.mask, self.reward = list(info["token_ids"]), [], [], 0.0
        for text, turn in zip(self.texts, self.turns, strict=True):
            _, reward, *_, info = env.step(Sampled(text, turn))
            self.reward += reward
            self.ids += info["token_ids"]
            for span in info["token_spans"]:
                self.mask += [int(kind_of(span.source) == "agent")] * (span.stop - span.start)
        assert len(self.mask) == len(self.ids) and [i for i, m in zip(self.ids, self.mask, strict=True) if m] == sum(
            self.turns, []
        )


def tokenizer_for(env_id: str) -> Any:
    return make_tiny_tokenizer(chat_template=PLAIN if env_id == BISECT else TEMPLATE)


def test_trl_makes_the_same_ids_and_mask_and_its_groups_begin_alike(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from agent_gym.contrib.trl import to_trl

    path = make_tiny_model(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.chat_template = TEMPLATE
    ours = Scripted(GSM8K, tokenizer)
    left = [[list(turn) for turn in ours.turns] for _ in range(4)]
    lent, openings = to_trl(GSM8K, tasks=4), list[str]()

    class Seen(lent.environment_factory):  # type: ignore[name-defined, misc]
        def reset(self, **row: Any) -> str:
            openings.append(super().reset(**row))
            return openings[-1]

    class Trainer(trl.GRPOTrainer):
        def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
            assert len(prompt_ids) == 4
            return [one.pop(0) for one in left], None  # all members play the same

    settings = {"per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 512}
    arguments = trl.GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none", **settings)
    model = AutoModelForCausalLM.from_pretrained(path)
    trainer = Trainer(
        model, processing_class=tokenizer, args=arguments, **{**lent._asdict(), "environment_factory": Seen}
    )
    made = trainer._generate_and_score_completions([dict(lent.train_dataset[3])] * 4)
    assert len(set(openings)) == 1 and len(openings) == 4
    for ids, keep, mask in zip(made["completion_ids"], made["completion_mask"], made["tool_mask"], strict=True):
        assert ids[keep.bool()].tolist() == ours.ids
        assert mask[keep.bool()].tolist() == ours.mask


class TestSkyRL:
    @pytest.fixture(autouse=True)
    def _skyrl(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # SkyRL 0.3.0 says Python 3.11, and pydantic refuses its `typing.TypedDict` below 3.12.
        monkeypatch.setattr(typing, "TypedDict", typing_extensions.TypedDict)
        self.generators = pytest.importorskip("skyrl.train.generators.skyrl_gym_generator")

    @pytest.mark.parametrize("env_id", [GSM8K, BISECT])
    def test_it_makes_the_same_ids_and_mask(self, env_id: str) -> None:
        from skyrl.train.config import GeneratorConfig, SkyRLGymConfig

        from agent_gym.contrib.skyrl import to_skyrl

        tokenizer = tokenizer_for(env_id)
        ours, row = Scripted(env_id, tokenizer), to_skyrl(env_id, tasks=4, **KWARGS[env_id])[3]
        left = [list(turn) for turn in ours.turns]

        class Engine:
            async def generate(self, batch: Any, model: Any = None) -> dict[str, Any]:
                turn = left.pop(0)
                text = tokenizer.decode(turn, skip_special_tokens=True)
                return {
                    "responses": [text],
                    "response_ids": [turn],
                    "stop_reasons": ["stop"],
                    "response_logprobs": None,
                }

            async def finish_session(self, session: str) -> None:
                pass

        config = GeneratorConfig()
        config.batched, config.step_wise_trajectories, config.max_turns = False, False, 100
        loop = self.generators.SkyRLGymGenerator(config, SkyRLGymConfig(), Engine(), tokenizer)
        made = asyncio.run(loop.agent_loop(row["prompt"], row["env_class"], {"task": row["task"]}, 4096, 4096))
        assert made.response_ids == ours.ids and made.loss_mask == ours.mask
        assert sum(made.reward) == pytest.approx(ours.reward) and made.env_metrics["is_success"] == 1.0
        if env_id == BISECT:  # no tools, which a template would show elsewhere
            assert made.prompt_ids == ours.prompt


class TestVerl:
    def test_turns_of_a_role_are_sampled(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        # Stand-ins for verl, so that this runs without it: the mask is made by the loop alone.
        parts = {"AgentLoopBase": object, "AgentLoopOutput": SimpleNamespace, "AgentLoopMetrics": SimpleNamespace}
        monkeypatch.setitem(sys.modules, "verl.experimental.agent_loop.agent_loop", SimpleNamespace(**parts))
        adapter = runpy.run_module("agent_gym.contrib.verl")  # not imported: other tests may have the real one
        tokenizer = tokenizer_for(BARGAIN)
        ours, rows = Scripted(BARGAIN, tokenizer), adapter["to_verl"](BARGAIN, tasks=4)
        # Through the file that verl reads, beside rows of another environment with other arguments.
        datasets.Dataset.from_list(rows).to_parquet(tmp_path / "one.parquet")
        mixed = [*rows, *adapter["to_verl"](BISECT, tasks=4, max_turns=3)]
        datasets.Dataset.from_list(mixed).to_parquet(tmp_path / "two.parquet")
        row = datasets.Dataset.from_parquet(str(tmp_path / "two.parquet"), cache_dir=str(tmp_path))[3]
        left = [list(turn) for turn in ours.turns]

        class Server:
            async def generate(self, **_: Any) -> Any:
                return SimpleNamespace(token_ids=left.pop(0), log_probs=None)

        loop = adapter["AgentGymLoop"]()
        loop.tokenizer, loop.server_manager = tokenizer, Server()
        loop.rollout_config = SimpleNamespace(response_length=4096)
        made = asyncio.run(loop.run({}, extra_info=row["extra_info"]))
        assert made.response_ids == ours.ids and made.response_mask == ours.mask and any(ours.mask)

    @pytest.mark.parametrize("env_id", [GSM8K, BISECT, BARGAIN])
    def test_its_loop_gets_the_same_ids_and_mask(self, env_id: str) -> None:
        tokenizer = tokenizer_for(env_id)
        loops = pytest.importorskip("verl.experimental.agent_loop.agent_loop")
        omegaconf = pytest.importorskip("omegaconf")
        from verl.workers.rollout.replica import TokenOutput

        from agent_gym.contrib.verl import AgentGymLoop, to_verl

        ours, row = Scripted(env_id, tokenizer), to_verl(env_id, tasks=4, **KWARGS[env_id])[3]
        left, prompts = [list(turn) for turn in ours.turns], list[list[int]]()

        class Server:
            async def generate(self, prompt_ids: list[int], **_: Any) -> Any:
                prompts.append(prompt_ids)
                turn = left.pop(0)
                return TokenOutput(token_ids=turn, log_probs=[-1.0] * len(turn))

        config = omegaconf.OmegaConf.create({"actor_rollout_ref": {"rollout": {"response_length": 4096}}})

        async def play() -> Any:
            wrapped = loops.DictConfigWrap(config), loops.DictConfigWrap(omegaconf.OmegaConf.create({}))
            loop = AgentGymLoop(wrapped[0], Server(), tokenizer, None, None, wrapped[1], hf_model_type="qwen2")
            return await loop.run({}, raw_prompt=row["prompt"], extra_info=row["extra_info"])

        made = asyncio.run(play())
        assert made.prompt_ids == ours.prompt and made.response_ids == ours.ids and made.response_mask == ours.mask
        assert made.reward_score == pytest.approx(ours.reward)
        assert [logprob != 0.0 for logprob in made.response_logprobs] == [bool(one) for one in ours.mask]
        assert prompts[-1] == (ours.prompt + ours.ids)[: len(prompts[-1])]  # what is sampled from is what is trained on


class TestVerifiersRenderers:
    """What the TrainClient of verifiers renders with: a renderer written for a model family, and one for all others."""

    @pytest.fixture
    def qwen(self) -> Any:
        pytest.importorskip("renderers")
        names = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
        return make_tiny_tokenizer(chat_template=PLAIN, special_tokens=names)

    def _play(self, renderer: Any, ours: Scripted) -> list[int]:
        """The ids of an episode as TrainClient joins them: it bridges where the renderer can, else renders anew."""
        env = gymnasium.make(ours.env_id, **KWARGS[ours.env_id])
        row = ours.row
        _, info = env.reset(seed=row["seed"], options={"split": row["split"], "index": row["index"]})
        messages = list(info["messages"])
        context = renderer.render(messages, add_generation_prompt=True).token_ids
        for text, turn in zip(ours.texts, ours.turns, strict=True):
            _, _, over, _, info = env.step(text)
            tail = info["messages"][1:]
            messages += [{"role": "assistant", "content": text}, *tail]
            if over:
                return [*context, *turn]
            bridged = renderer.bridge_to_next_turn(context, turn, tail)
            made = renderer.render(messages, add_generation_prompt=True) if bridged is None else bridged
            context = made.token_ids
        raise AssertionError("the episode does not end")

    def test_that_of_a_family_keeps_the_sampled_ids(self, qwen: Any) -> None:
        from renderers import Qwen3RendererConfig, create_renderer

        ours = Scripted(BISECT, qwen)
        config = Qwen3RendererConfig(thinking_retention="all")
        assert self._play(create_renderer(qwen, config), ours) == ours.prompt + ours.ids
        # By default thoughts are dropped when the user speaks, so that the history is rendered, and encoded, anew.
        assert self._play(create_renderer(qwen, Qwen3RendererConfig()), ours) != ours.prompt + ours.ids

    def test_that_for_all_others_encodes_the_turns_again(self, qwen: Any) -> None:
        from renderers import DefaultRendererConfig, create_renderer

        ours = Scripted(BISECT, qwen)
        made = self._play(create_renderer(qwen, DefaultRendererConfig()), ours)
        assert made != ours.prompt + ours.ids  # docs/adapters.md: their limit; if this fails, it is mended
        assert qwen.decode(made) == qwen.decode(ours.prompt + ours.ids)  # the same words, another tokenization


def test_a_row_of_nemo_gym_plays_an_episode() -> None:
    gym = pytest.importorskip("resources_servers.gymnasium")
    from agent_gym.contrib.nemo_gym import nemo_gym_rows, nemo_gym_server

    line = nemo_gym_rows(BISECT, "player", tasks=4)[3]
    server = nemo_gym_server(BISECT).model_construct(session_state={})
    assert issubclass(type(server), gym.GymnasiumServer)
    texts = policy_texts(expert_episode(gymnasium.make(BISECT), seed=3, options={"split": "train", "index": 3}))

    async def play() -> tuple[float, bool]:
        observation, _ = await server.reset({"task": line["task"]}, "a")
        assert observation is None and line["responses_create_params"]["input"][-1]["role"] == "user"
        for text in texts:
            said = SimpleNamespace(type="message", content=text)
            observation, reward, over, _, _ = await server.step(SimpleNamespace(output=[said]), {}, "a")
        await server.close_session("a")
        return reward, over and observation is None

    assert asyncio.run(play()) == (1.0, True) and not server.session_state
