"""Episodes with images: spans, masks, files, replays, and literal image tokens in what the world says."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import gymnasium  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from rollout_tools import expert, roll  # noqa: E402
from rollout_tools import play as play_with  # noqa: E402
from vision_tools import ENV, PICTURES, noise, tiny_processor  # noqa: E402

from agent_gym import Reply, TextEnv  # noqa: E402
from agent_gym.chat import ChatRenderer  # noqa: E402
from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.images import Image, images_of, parts  # noqa: E402
from agent_gym.policies import ScriptedPolicy  # noqa: E402
from agent_gym.rollout import (  # noqa: E402
    Budget,
    EpisodeSpec,
    from_record,
    read_trajectories,
    replay,
    to_record,
    write_trajectories,
)

PAD = "<|image_pad|>"


def renderer() -> Any:
    return ChatRenderer.of(tiny_processor())


def play(env_id: str, act: Any, count: int = 4, max_tokens: int = 1000) -> list[Any]:
    specs = [EpisodeSpec(env_id, seed=i) for i in range(count)]
    return roll(tiny_processor(), specs, act, Budget(max_tokens=max_tokens), workers=2)


def check(episode: Any) -> None:
    """The images of the messages stand in the row in their order, all of their tokens the world's."""
    eyes = renderer()
    (row,) = episode.rows
    mask = row.action_mask
    shown = [t for _, start, stop in row.images for t in range(start, stop)]
    assert not any(mask[t] for t in shown)
    stray = [t for t, i in enumerate(row.token_ids) if i == eyes.vision.token_id and t not in set(shown)]
    assert all(mask[t] for t in stray), "only the policy may write an image token that is no image"
    assert all(row.token_ids[t] == eyes.vision.token_id for t in shown)
    assert [image for image, *_ in row.images] == images_of(episode.messages)[: len(row.images)]
    assert all(eyes.vision.count(image) == stop - start for image, start, stop in row.images)


def test_the_maze_is_solved_by_its_expert_and_every_image_is_in_the_row() -> None:
    for episode in play(ENV, expert):
        assert episode.success and len(episode.rows[0].images) == len(episode.steps)
        check(episode)


@given(st.lists(st.sampled_from([PAD, "<|vision_start|>", "<|image", "_pad|>", "Qxbreakx", "<image>", "é", " "])))
@settings(max_examples=25, deadline=None)
def test_image_tokens_in_what_the_world_says_are_words(pieces: list[str]) -> None:
    """As many image tokens as the images have, and to the letter the words."""
    eyes, words = renderer(), "".join(pieces)
    image = noise(56, 28)
    for text in (parts(words, image, words), parts(image, words)):
        messages = [{"role": "user", "content": text}]
        for ids in (eyes.prompt(messages), eyes.reply([5], messages), eyes.reply([2], messages, final=True)):
            assert ids.count(eyes.vision.token_id) == 2
            ((_, start, stop),) = eyes.vision.place(ids, messages)
            assert stop - start == 2
            assert words in eyes.tokenizer.decode(ids)
    plain = [{"role": "user", "content": words}]
    assert eyes.vision.token_id not in eyes.prompt(plain) and eyes.vision.place(eyes.prompt(plain), plain) == []


def test_templates_and_prompts_that_confuse_images_are_refused() -> None:
    with pytest.raises(ConfigError, match="no system prompt may hold that token"):
        renderer().prompt([{"role": "system", "content": PAD}, {"role": "user", "content": "a"}])
    eyes = ChatRenderer(tiny_processor())
    eyes._chosen = {"chat_template": "{% for m in messages %}{{ m.role }}{% endfor %}"}
    with pytest.raises(ConfigError, match="shows 0 of 1 images"):
        eyes.prompt([{"role": "user", "content": parts(noise(28, 28))}])


def test_image_tokens_that_the_policy_writes_break_no_row() -> None:
    """In the midst of a turn and at its end: sampled as they are, read as an end of turn from then on."""
    eyes = renderer()
    prompts: list[list[int]] = []

    class Watching(ScriptedPolicy):
        def submit(self, request: Any) -> None:
            prompts.append(list(request.prompt_ids))
            assert request.images
            within = {t for _, start, stop in request.images for t in range(start, stop)}
            assert all(t in within for t, i in enumerate(request.prompt_ids) if i == eyes.vision.token_id)
            super().submit(request)

    policy = Watching(lambda episode: f"Go{PAD}{PAD} up{PAD}", eyes.encode_action)
    (episode,) = play_with(policy, tiny_processor(), [EpisodeSpec(ENV, seed=1)], Budget(max_tokens=1000))
    check(episode)
    (row,) = episode.rows
    sampled = [row.token_ids[s.start : s.stop] for s in episode.steps]
    assert all(ids.count(eyes.vision.token_id) == 3 for ids in sampled)
    assert "<|image_pad|> up" in episode.steps[0].action, "what the environment sees is what was written"
    written = episode.steps[0].start + sampled[0].index(eyes.vision.token_id)
    assert prompts[1][written] == eyes.vision.stand_in and row.token_ids[written] == eyes.vision.token_id


def test_files_hold_each_image_once_and_give_it_back(tmp_path: Path) -> None:
    episodes = play(PICTURES, expert, count=6) + play(ENV, expert, count=2)
    path = tmp_path / "episodes.jsonl"
    write_trajectories(path, (to_record(episode, tiny_processor()) for episode in episodes))
    for record, episode in zip(read_trajectories(path), episodes, strict=True):
        urls = record.get("images", [])
        assert len(set(urls)) == len(urls) and all(url.startswith("data:image/png;base64,") for url in urls)
        again = from_record(record)
        assert again.rows == episode.rows and again.messages == episode.messages
        assert replay(record) == []
        if urls:
            # Another picture, and the replay says which turn showed it.
            record["images"] = [Image(255 - Image.from_url(url).pixels).url() for url in urls]
            assert any("images" in found or "opening" in found for found in replay(record))


def test_a_budget_that_ends_within_an_image_leaves_the_image_out() -> None:
    for limit in range(100, 140, 6):
        (episode,) = play(ENV, lambda episode: "hm", 1, limit)
        assert episode.truncation == "tokens"
        check(episode)


def test_the_viewers_show_them(tmp_path: Path) -> None:
    from rich.console import Console

    from agent_gym.viewer.page import compact, write_html
    from agent_gym.viewer.terminal import episode_view

    episodes = play(ENV, expert, count=2)
    stored = [to_record(episode, tiny_processor()) for episode in episodes]
    data = compact(stored, "mazes")
    assert set(data["images"]) == {url for record in stored for url in record["images"]}
    for shown, episode, record in zip(data["episodes"], episodes, stored, strict=True):
        numbers = [n for *_, images in shown["opening"] for n in images]
        numbers += [n for step in shown["steps"] for n in step.get("images", [])]
        assert [data["images"][n] for n in numbers] == [image.url() for image in images_of(episode.messages)]
        console = Console(record=True, width=80, file=(tmp_path / "out").open("w"))
        console.print(episode_view(record))
        assert console.export_text().count("<image>") == len(numbers)
    page = write_html(tmp_path / "page.html", stored[:1])
    assert "img-src data:;" in page.read_text()
    if shutil.which("node"):
        command = ["node", str(Path(__file__).with_name("viewer_dom.js")), str(page)]
        drawn = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        assert drawn.count("img.shown") == len(images_of(episodes[0].messages))


def test_what_knows_text_only_says_so(tmp_path: Path) -> None:
    import gymnasium

    from agent_gym import QuestionEnv
    from agent_gym.contrib.lending import opening_messages
    from agent_gym.serve.conversation import Conversation
    from agent_gym.trainers.export_trajectories import export_trajectories

    env = gymnasium.make(ENV).unwrapped
    _, info = env.reset(seed=0)
    with pytest.raises(ConfigError, match="adapters hand over text only"):
        opening_messages(env, info)
    chatted = QuestionEnv([{"question": "What is it?", "answer": "red"}])
    chatted.begin = lambda task: parts("Look: ", noise(8, 8))
    with pytest.raises(ConfigError, match="which a chat does not"):
        Conversation(chatted, ScriptedPolicy(str, list), renderer(), EpisodeSpec("Pictured"))
    stored = [to_record(episode) for episode in play(ENV, expert, count=1)]
    for form in ("sft", "messages"):
        with pytest.raises(ConfigError, match="no place for images"):
            export_trajectories(stored, tmp_path / form, form=form)
    (row,) = export_trajectories(stored, tmp_path / "whole")
    assert json.loads(row["extra"])["images"] == stored[0]["images"]


def test_a_processor_that_does_not_count_is_named_when_it_matters() -> None:
    """Text goes through any processor; an image needs one that says how many tokens it takes."""

    class Silent:
        def __init__(self, **own: Any) -> None:
            self.tokenizer, self.image_processor = tiny_processor().tokenizer, tiny_processor().image_processor
            self.__dict__ |= own

        def replace_image_token(self, inputs: Any, index: int) -> str:
            raise NotImplementedError

    text = [{"role": "user", "content": "a"}]
    for silent, complaint in ((Silent(), "what stands for one"), (Silent(image_token=PAD), "how many tokens")):
        eyes = ChatRenderer(silent)
        assert eyes.prompt(text) == renderer().prompt(text)
        with pytest.raises(ConfigError, match=complaint):
            eyes.prompt([{"role": "user", "content": parts(noise(28, 28))}])


class Later(TextEnv):
    """Shows an image only when the policy has acted."""

    def __init__(self, rebuilds: bool = False, **kwargs: Any) -> None:
        super().__init__({"train": range(4)}, max_turns=3, **kwargs)
        self.rebuilds = rebuilds

    def begin(self, task: Any) -> str:
        return "look"

    def respond(self, action: str) -> Reply:
        return Reply(parts("you see", noise(56, 56)))

    def reset(self, **kwargs: Any) -> Any:
        observation, info = super().reset(**kwargs)
        return observation, info | {"rebuilds": self.rebuilds}


if "Toy/Later-v0" not in gymnasium.registry:
    gymnasium.register("Toy/Later-v0", entry_point=Later, disable_env_checker=True)


@pytest.mark.parametrize("context", ["window:2", "budget", "summarize", "rebuild", "template", "append"])
def test_images_that_come_later_are_refused_where_the_context_is_made_anew(context: str) -> None:
    """A template would render them behind the row's back, and the policy read ends of turns in their place."""
    rebuilds = context == "append"
    specs = [EpisodeSpec("Toy/Later-v0", {"rebuilds": rebuilds}, seed=1)]
    with pytest.raises(ConfigError, match="writes each prompt anew" if rebuilds else "leave context out"):
        roll(tiny_processor(), specs, lambda episode: "go", context=context)


def test_the_command_line_plays_and_scores_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a model an environment that shows images gets a processor made on the spot."""
    from agent_gym.cli.main import main

    path = tmp_path / "mazes.jsonl"
    assert main(["rollout", ENV, "--expert", "--episodes", "2", "--output", str(path)]) == 0
    assert all(record["images"] and record["success"] for record in read_trajectories(path))
    assert main(["rescore", str(path)]) == 0
    assert "the world answers otherwise in 0 of them" in capsys.readouterr().out


def test_an_image_of_three_lines_is_read_as_an_image() -> None:
    """(3, W, 3) could as well be three colours of W lines."""
    pillow = pytest.importorskip("PIL.Image")
    eyes, image = renderer(), noise(3, 84)
    found = eyes.vision.inputs([image])
    wanted = tiny_processor().image_processor([pillow.fromarray(image.pixels)], return_tensors="pt")
    assert (found["pixel_values"] == wanted["pixel_values"]).all()
    assert eyes.vision.count(image) == int(wanted["image_grid_thw"].prod()) // 4
