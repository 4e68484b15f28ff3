"""Images in messages, and the tokens and tensors that a model makes of them.

The content of a message is a text, or a list of parts as chat templates know them: {"type": "text", "text": ...} and
{"type": "image", "image": Image}. An observation has the word `PLACEHOLDER` in place of an image.

A chat template writes one image token per image; a model wants one per patch that it reads, and only its processor
knows how many there are. So `Vision` expands the template's token before anything is encoded. An image token that the
policy samples is not an image: it ends the turn, is trained as any sampled token, and is shown to models as an end of
turn from then on (`readable`). Nothing here imports transformers or torch.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from agent_gym.errors import ConfigError

PLACEHOLDER = "<image>"
"""The placeholder of an image in a text for people."""

Part: TypeAlias = dict[str, Any]
Content: TypeAlias = str | list[Part]

_URL = "data:image/png;base64,"


class Image:
    """An RGB image that never changes, equal to every image with the same pixels.

    `pixels` are (H, W, 3) uint8, else `ConfigError`; they are copied, so that an environment may keep drawing on them.
    """

    def __init__(self, pixels: Any) -> None:
        array = np.array(pixels, order="C")
        if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or not array.size:
            found = f"{array.shape} and {array.dtype}"
            raise ConfigError(f"an image is of shape (height, width, 3) and type uint8, not {found}")
        array.setflags(write=False)
        self.pixels = array
        self.size: tuple[int, int] = array.shape[:2]  # height and width

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.blake2b(repr(self.size).encode() + self.pixels.tobytes(), digest_size=8).hexdigest()

    def url(self) -> str:
        """Return the image as a data URL with a PNG file, which browsers, chat servers and trajectory files take."""
        from PIL import Image as Picture  # here, since most environments show no images

        file = io.BytesIO()
        Picture.fromarray(self.pixels).save(file, "PNG", optimize=True)
        return _URL + base64.b64encode(file.getvalue()).decode()

    @classmethod
    def from_url(cls, url: str) -> Image:
        """Read a data URL with a PNG file; anything else is a `ConfigError`."""
        from PIL import Image as Picture

        try:
            data = base64.b64decode(url.removeprefix(_URL), validate=True)
            with Picture.open(io.BytesIO(data), formats=["PNG"]) as picture:
                return cls(np.asarray(picture.convert("RGB")))
        except Exception as error:  # Pillow has a class of errors for each way of being no image
            raise ConfigError(f"no image of a trajectory file: {url[:60]!r} ({error})") from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Image) and np.array_equal(self.pixels, other.pixels)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __deepcopy__(self, memo: dict[int, Any]) -> Image:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Image, (self.pixels,)

    def __repr__(self) -> str:
        height, width = self.size
        return f"Image({height}x{width}, {self.digest})"


class Shown(NamedTuple):
    """An image in a sequence of tokens: from its first position to the one after its last."""

    image: Image
    start: int
    stop: int

    def moved(self, offset: int) -> Shown:
        return Shown(self.image, self.start + offset, self.stop + offset)


def parts(*pieces: str | Image | np.ndarray) -> list[Part]:
    """Make the content of a message from texts and images, `Image`s or (H, W, 3) uint8 arrays, in their order."""
    return [
        {"type": "text", "text": piece}
        if isinstance(piece, str)
        else {"type": "image", "image": piece if isinstance(piece, Image) else Image(piece)}
        for piece in pieces
    ]


def images_of(messages: Iterable[Mapping[str, Any]]) -> list[Image]:
    """Return the images of messages in their order."""
    contents = [message["content"] for message in messages if isinstance(message["content"], list)]
    return [part["image"] for content in contents for part in content if part["type"] == "image"]


def join(contents: Sequence[Content], joint: str) -> Content:
    """Concatenate contents, a text between each two."""
    if all(isinstance(content, str) for content in contents):
        return joint.join(map(str, contents))
    joined: list[Part] = []
    for i, content in enumerate(contents):
        joined += parts(joint) if i and joint else []
        joined += parts(content) if isinstance(content, str) else content
    return joined


class Vision:
    """The image side of a multimodal processor of transformers."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self.token: str = processor.image_token
        self.token_id: int = processor.tokenizer.convert_tokens_to_ids(self.token)
        self.stand_in: int = processor.tokenizer.eos_token_id  # shown for an image token that the policy sampled
        self._expansions: dict[tuple[int, int], str] = {}  # by the size of the image

    @classmethod
    def of(cls, encoder: Any) -> Vision | None:
        """Return the image side of a processor; None for a tokenizer."""
        sees = hasattr(encoder, "image_processor") and isinstance(getattr(encoder, "image_token", None), str)
        return cls(encoder) if sees else None

    def expand(self, text: str, messages: Sequence[Mapping[str, Any]]) -> str:
        """Write out the image tokens of a rendered text; `ConfigError` if it shows other images than the messages."""
        images = images_of(messages)
        first, *rest = text.split(self.token)
        if len(rest) != len(images):
            raise ConfigError(
                f"the chat template shows {len(rest)} of {len(images)} images: it must write {self.token!r} once for "
                'each part of type "image", and no system prompt may hold that token'
            )
        return first + "".join(self._expansion(image) + piece for image, piece in zip(images, rest, strict=True))

    def place(self, ids: Sequence[int], messages: Sequence[Mapping[str, Any]]) -> list[Shown]:
        """Find the images of messages in the ids that were made of these messages."""
        images = images_of(messages)
        positions = [t for t, i in enumerate(ids) if i == self.token_id] if images else []
        counts = [self.count(image) for image in images]
        if sum(counts) != len(positions):
            raise ConfigError(
                f"{len(positions)} image tokens for {images}, which take {counts}: the environment rendered them with "
                "another processor, or answers inside of the policy's turn, where no image can stand"
            )
        stops = [*accumulate(counts, initial=0)]
        places = zip(images, stops, stops[1:], strict=False)
        return [Shown(image, positions[first], positions[stop - 1] + 1) for image, first, stop in places]

    def count(self, image: Image) -> int:
        return self._expansion(image).count(self.token)

    def readable(self, ids: Sequence[int], shown: Sequence[Shown]) -> list[int]:
        """Return ids in which no image token lies outside of an image."""
        if self.token_id not in ids:
            return list(ids)
        within = {t for image in shown for t in range(image.start, image.stop)}
        return [self.stand_in if i == self.token_id and t not in within else i for t, i in enumerate(ids)]

    def collapse(self, ids: Sequence[int], shown: Sequence[Shown]) -> list[int]:
        """Return ids with a single image token for each image, as engines want them that expand it themselves."""
        kept, position = [], 0
        for image in shown:
            kept += [*ids[position : image.start], self.token_id]
            position = image.stop
        return [*kept, *ids[position:]]

    def inputs(self, images: Sequence[Image]) -> dict[str, Any]:
        """Return the model's inputs for images, one after the other along the first axis, as tensors on the CPU.

        For Qwen2-VL `pixel_values`, (patches of all images, numbers of a patch), and `image_grid_thw`, (images, 3).
        """
        return dict(self._read(images, "pt")) if images else {}

    def _expansion(self, image: Image) -> str:
        if image.size not in self._expansions:
            try:
                self._expansions[image.size] = self.processor.replace_image_token(self._read([image], "np"), 0)
            except NotImplementedError as error:
                raise ConfigError(
                    f"{type(self.processor).__name__} does not say how many tokens an image takes "
                    "(replace_image_token): take a model whose processor does, such as Qwen2-VL"
                ) from error
        return self._expansions[image.size]

    def _read(self, images: Sequence[Image], tensors: str) -> Any:
        # Otherwise an image of three lines would be taken for one of three colours.
        layout = {"input_data_format": "channels_last"}
        return self.processor.image_processor([image.pixels for image in images], return_tensors=tensors, **layout)
