"""verl 0.9 (github.com/volcengine/verl): an agent loop that plays an environment of agent_gym.

verl asks a loop for `prompt_ids`, `response_ids` and `response_mask`. Here the environment reports these, so that the
mask in verl is the one of `AgentGRPOTrainer`, whatever the chat template. In verl's configuration
`actor_rollout_ref.rollout.agent.agent_loop_config_path` names a file with

    - name: agent_gym
      _target_: agent_gym.contrib.verl.AgentGymLoop

and the data set is `datasets.Dataset.from_list(to_verl(env_id)).to_parquet("train.parquet")`.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import uuid4

import gymnasium

from agent_gym.chat import ChatRenderer
from agent_gym.contrib.lending import Row, task_rows
from agent_gym.errors import require
from agent_gym.registry.from_data import env_from_data
from agent_gym.transcript import Sampled, kind_of

loops: Any = require("verl.experimental.agent_loop.agent_loop", "verl")


def to_verl(env_id: str, *, split: str = "train", tasks: int = 1000, seed: int = 0, **env_kwargs: Any) -> list[Row]:
    """Return rows of verl's data set for tasks of an environment; `ConfigError` if there are fewer."""
    # As JSON: a file of parquet takes no dict without entries, and gives each row the entries of the others, as None.
    written = json.dumps(env_kwargs)
    return [
        {
            "prompt": [{"role": "user", "content": f"{env_id} {split}/{row['index']}"}],  # the loop makes its own
            "agent_name": "agent_gym",
            "data_source": env_id,
            "reward_model": {"style": "rule", "ground_truth": ""},  # verl asks for one; the loop pays the reward
            "extra_info": {"index": row["index"], "env_id": env_id, "env_kwargs": written, "task": row},
        }
        for row in task_rows(env_id, split, tasks, seed, env_kwargs)
    ]


class AgentGymLoop(loops.AgentLoopBase):
    """Plays one episode. The reward of the episode is verl's `reward_score`; turns' rewards are in `turn_scores`."""

    trust_rows = False
    """Whether rows may name modules, folders and addresses (`registry.from_data`)."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        """Play the episode of a row of `to_verl` and return verl's `AgentLoopOutput`."""
        about, limit = row["extra_info"], self.rollout_config.response_length
        renderer = ChatRenderer.of(self.tokenizer)
        env_id, env_kwargs = about["env_id"], json.loads(about["env_kwargs"])
        if not self.trust_rows:
            cure = "set trust_rows in a subclass of AgentGymLoop if you know who made the rows"
            env_id, env_kwargs = env_from_data(env_id, env_kwargs, "a row of the data set", cure=cure)
        env: Any = gymnasium.make(env_id, tokenizer=renderer, **env_kwargs)
        task = about["task"]
        options = {"split": task["split"], "index": int(task["index"])}
        _, info = await asyncio.to_thread(env.reset, seed=int(task["seed"]), options=options)
        prompt = list(info["token_ids"])
        ids, mask, logprobs, scores = list[int](), list[int](), list[float](), list[float]()
        request, over = uuid4().hex, False
        while not over and len(ids) < limit:
            output = await self.server_manager.generate(
                request_id=request, prompt_ids=prompt + ids, sampling_params=sampling_params
            )
            action = Sampled(renderer.decode_action(output.token_ids), output.token_ids)
            _, reward, terminated, truncated, info = await asyncio.to_thread(env.step, action)
            over = terminated or truncated
            start = len(prompt) + len(ids)
            new = [0] * len(info["token_ids"])
            for span in info["token_spans"]:
                if kind_of(span.source) == "agent":
                    new[span.start - start : span.stop - start] = [1] * (span.stop - span.start)
            ids, mask = ids + list(info["token_ids"]), mask + new
            logprobs += [*(output.log_probs or []), *[0.0] * (len(new) - len(output.token_ids))]
            scores.append(float(reward))
        env.close()
        return loops.AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=ids[:limit],
            response_mask=mask[:limit],
            response_logprobs=logprobs[:limit] if len(logprobs) == len(ids) else None,
            reward_score=sum(scores),
            num_turns=2 * len(scores) + 1,
            metrics=loops.AgentLoopMetrics(),
            extra_fields={"turn_scores": scores, "tool_rewards": []},
        )
