"""Images in messages: what they are, how they are stored, and that text environments know nothing of them."""

from __future__ import annotations

import base64
import copy
import io
import pickle
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as pillow
from toy_envs import WorldEnv

from agent_gym import ConfigError, Reply
from agent_gym.chat import MAX_OBSERVATION_CHARS, described, text_of
from agent_gym.envs.maze import Layouts, VisualMazeEnv
from agent_gym.images import Image, images_of, join, parts

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import maze as baselines  # noqa: E402


def noise(height: int, width: int, seed: int = 0) -> Image:
    return Image(np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8))


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 99))
def test_an_image_survives_every_road(height: int, width: int, seed: int) -> None:
    canvas = noise(height, width, seed).pixels.copy()
    image = Image(canvas)
    canvas[:] += 1
    assert image.size == (height, width) and image != Image(canvas)
    with pytest.raises(ValueError, match="read-only"):
        image.pixels[0, 0] = 1
    for again in (Image.from_url(image.url()), pickle.loads(pickle.dumps(image)), Image(image.pixels)):
        assert again == image and hash(again) == hash(image) and again.digest == image.digest
    assert copy.deepcopy(image) is image


@pytest.mark.parametrize("wrong", [np.zeros((4, 4, 3)), np.zeros((4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8), "a"])
def test_what_is_no_image_is_named(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="height, width, 3"):
        Image(wrong)


@pytest.mark.parametrize("url", ["data:image/png;base64,AAAA", "https://a/b.png"])
def test_what_is_no_url_of_ours_is_named(url: str) -> None:
    with pytest.raises(ConfigError, match="no image of a trajectory file"):
        Image.from_url(url)


def test_its_url_is_a_png_for_everybody_and_a_png_of_others_is_read_in_rgb() -> None:
    buffer = io.BytesIO()
    read = pillow.open(io.BytesIO(base64.b64decode(noise(8, 8).url().partition(",")[2])))
    read.load()  # checks the sums
    assert read.format == "PNG" and read.mode == "RGB" and np.array_equal(np.asarray(read), noise(8, 8).pixels)
    grey = read.convert("L")
    grey.save(buffer, "PNG")
    image = Image.from_url("data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode())
    assert image == Image(np.asarray(grey.convert("RGB")))


def test_contents_are_told_apart() -> None:
    one, other = noise(2, 3), noise(2, 3, seed=1)
    content = parts("a ", one, " b", other.pixels)
    assert text_of(content) == "a <image> b<image>" and text_of("a") == "a"
    assert images_of([{"content": content}, {"content": "c"}]) == [one, other]
    assert join(["a", "b"], "\n") == "a\nb"
    assert text_of(join(["a", parts(one), "b"], "\n")) == "a\n<image>\nb"
    message = {"content": parts("x", one)}
    assert described([message]) == described([copy.deepcopy(message)])
    assert described([message]) != described([{"content": parts("x", other)}])
    assert described([{"content": "a"}, {"content": "b"}]) == "a b"


def gallery(begin: Any, *replies: Reply) -> Any:
    env = WorldEnv(system_prompt="Look.")
    return env, env.reset(options={"task": {"question": begin, "replies": replies}})


def test_observations_are_texts_and_messages_hold_the_images() -> None:
    image = noise(2, 2)
    env, (observation, info) = gallery(parts("What is ", image, "?"), Reply(parts(image)))
    assert observation == "Look.\n\nWhat is <image>?" and observation in env.observation_space
    assert info["messages"][-1]["content"] == parts("What is ", image, "?")
    observation, *_, info = env.step("a cat")
    assert observation == "<image>" and images_of(info["messages"]) == [image]
    text = env.transcript.text
    assert [text[s.start : s.stop] for s in info["spans"]] == ["a cat", "<image>"]


def test_several_messages_and_long_or_broken_texts_are_bounded_as_ever() -> None:
    image, long = noise(2, 2), "x" * MAX_OBSERVATION_CHARS
    answers = [{"role": "tool", "content": parts(long, image)}, {"role": "tool", "content": long + "\ud800"}]
    texts = [{"role": "tool", "content": [{"type": "text", "text": long}]}] * 3  # with what stands between them
    env, _ = gallery("go", Reply(messages=answers), Reply(parts("a\ud800", image)), Reply(messages=texts))
    observation, *_, info = env.step("a")
    assert observation in env.observation_space and "[cut: too long]" in observation
    assert images_of(info["messages"]) == [image] and isinstance(info["messages"][2]["content"], str)
    assert env.step("b")[0] == "a?<image>"
    assert env.step("c")[0] in env.observation_space


# The maze: every setting that it allows ends, and a policy that does not look does not find the way.


@pytest.mark.parametrize("size", [3, 12, *(pytest.param(size, marks=pytest.mark.slow) for size in range(4, 12))])
def test_every_setting_has_layouts_in_every_split(size: int) -> None:
    for longest in (1, 2, 144):
        env = VisualMazeEnv(size=np.int64(size), longest=longest)
        for split, length in Layouts.SIZES.items():
            assert 50 <= len(env.tasks[split]) <= length
            for index in (0, len(env.tasks[split]) - 1):
                env.reset(seed=0, options={"split": split, "index": index})
                assert 1 <= env._layout.distances[env._layout.start] <= longest


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"size": 2}, "size is 2; .*whole number from 3 to 12"),
        ({"size": 5.0}, "size is 5.0"),
        ({"longest": 0}, "longest is 0; .*from 1 to 144"),
        ({"cell_pixels": "28"}, "cell_pixels is '28'"),
    ],
)
def test_settings_without_mazes_are_refused(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        gymnasium.make("AgentR1/VisualMaze-v0", **kwargs)


def test_the_search_for_a_layout_ends() -> None:
    with pytest.raises(ConfigError, match=r"size 2 .* 1 moves .*'test'"):
        Layouts("test", cells=2, longest=1)[0]


def test_a_wall_is_seen_and_not_told_unless_asked() -> None:
    for feedback, text in ((False, "<image>"), (True, "There is a wall.\n<image>")):
        env = VisualMazeEnv(size=3, feedback=feedback)
        env.reset(seed=0, options={"split": "test", "index": 0})
        observation, reward, *_, info = env.step("up")
        assert (observation, reward, info["error"]) == (text, 0.0, None)


def test_the_blind_baselines_are_those_of_the_card() -> None:
    played = {
        "random moves {}": baselines.success(baselines.random_moves),
        "a fixed spiral around the start {}": baselines.success(baselines.spiral),
        "a depth-first search {}": baselines.success(baselines.search),
        "reads where walls are and solves {}": baselines.success(baselines.search, feedback=True),
    }
    card = " ".join(str(VisualMazeEnv.__doc__).split())
    for words, share in played.items():
        assert words.format(f"{100 * share:.1f}%") in card, (words, share)
    blind = played["a depth-first search {}"]
    assert blind <= played["random moves {}"] < 0.25
