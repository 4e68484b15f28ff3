"""Contents of messages: texts and images, how long they may be, and what a model makes of the images.

A message's content is a text, or a list of parts as chat templates know them: {"type": "text", "text": ...} and
{"type": "image", "image": Image}. Text stays the interface of Gymnasium: an observation has the word `PLACEHOLDER`
where an image stands, and the parts themselves are in `info["messages"]`.

A chat template writes one image token per image. A model wants one per patch that it reads, and only its processor
knows how many those are. So `Vision` expands the template's token before anything is encoded, and the expanded tokens
are the world's like those around them: spans, masks and budgets need not know about images.

An image token that the policy samples is no image, since none belongs to it. It ends the policy's turn, is trained as
any sampled token, and is shown to models as an end of turn from then on (`readable`): so that the images of a row are
always those of the world, in engine and trainer alike.

Nothing here imports transformers or torch: everything goes through the processor that is handed in. Left out on
purpose: drawing and scaling.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from agent_gym.errors import ConfigError, shown

PLACEHOLDER = "<image>"
"""What stands for an image in a text that is for people."""
MAX_OBSERVATION_CHARS = 1 << 16

Part: TypeAlias = dict[str, Any]
Content: TypeAlias = str | list[Part]

_URL = "data:image/png;base64,"
_CUT = "\n[cut: too long]"


class Image:
    """An RGB image that never changes, equal to every image with the same pixels.

    Args:
        pixels: (H, W, 3) uint8; they are copied, so that an environment may go on drawing on its canvas.

    Raises:
        ConfigError: for anything else.
    """

    def __init__(self, pixels: Any) -> None:
        array = np.array(pixels, order="C")
        if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or not array.size:
            raise ConfigError(
                f"an image is of shape (height, width, 3) and type uint8, not {array.shape} and {array.dtype}"
            )
        array.setflags(write=False)
        self.pixels = array

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.pixels.shape[:2]

    @functools.cached_property
    def digest(self) -> str:
        """A name for what is on it."""
        return hashlib.blake2b(repr(self.size).encode() + self.pixels.tobytes(), digest_size=8).hexdigest()

    def url(self) -> str:
        """Return the image as a data URL with a PNG file, which browsers, chat servers and trajectory files take."""
        from PIL import Image as Picture  # here, since most environments show no images

        file = io.BytesIO()
        Picture.fromarray(self.pixels).save(file, "PNG", optimize=True)
        return _URL + base64.b64encode(file.getvalue()).decode()

    @classmethod
    def from_url(cls, url: str) -> Image:
        """Read a data URL with a PNG file.

        Raises:
            ConfigError: for anything else.
        """
        from PIL import Image as Picture

        try:
            data = base64.b64decode(url.removeprefix(_URL), validate=True)
            with Picture.open(io.BytesIO(data), formats=["PNG"]) as picture:
                return cls(np.asarray(picture.convert("RGB")))
        except Exception as error:  # Pillow has a class of errors for each way of being no image
            raise ConfigError(f"no image of a trajectory file: {url[:60]!r} ({error})") from error

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.pixels, dtype=dtype, copy=bool(copy))

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
    """An image where it stands in a sequence of tokens.

    Attributes:
        image: what is shown.
        start: position of its first token.
        stop: position behind its last token.
    """

    image: Image
    start: int
    stop: int

    def moved(self, offset: int) -> Shown:
        """Return the same in a sequence in which it stands `offset` tokens further on."""
        return Shown(self.image, self.start + offset, self.stop + offset)


def parts(*pieces: str | Image | np.ndarray) -> list[Part]:
    """Make the content of a message from texts and images in their order.

    Args:
        *pieces: texts, and images as `Image` or (H, W, 3) uint8 arrays.
    """
    content: list[Part] = []
    for piece in pieces:
        if isinstance(piece, str):
            content.append({"type": "text", "text": piece})
        else:
            content.append({"type": "image", "image": piece if isinstance(piece, Image) else Image(piece)})
    return content


def text_of(content: Content) -> str:
    """Return the words of a content, with `PLACEHOLDER` for each image."""
    if isinstance(content, str):
        return content
    return "".join(str(part["text"]) if "text" in part else f"<{part.get('type', 'part')}>" for part in content)


def images_of(messages: Iterable[Mapping[str, Any]]) -> list[Image]:
    """Return the images of messages in their order."""
    return [
        part["image"]
        for message in messages
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "image"
    ]


def described(messages: Iterable[Mapping[str, Any]]) -> str:
    """Return the words of messages and the digests of their images: equal where they say and show the same."""
    messages = list(messages)
    words = " ".join(text_of(message["content"]) for message in messages)
    return "\0".join([words, *(image.digest for image in images_of(messages))])


def join(contents: Sequence[Content], joint: str) -> Content:
    """Put contents behind each other, a text between each two."""
    if all(isinstance(content, str) for content in contents):
        return joint.join(str(content) for content in contents)
    joined: list[Part] = []
    for i, content in enumerate(contents):
        joined += parts(joint) if i and joint else []
        joined += parts(content) if isinstance(content, str) else content
    return joined


def check_content(content: Any, what: str) -> None:
    """Raise `ConfigError` unless this is a text, or parts as `parts` makes them."""
    if not is_content(content):
        raise ConfigError(f"{what} is {shown(content)}; it must be a text, or what agent_gym.images.parts makes")


def is_content(content: Any) -> bool:
    """Say whether this is a text, or parts as `parts` makes them."""
    return isinstance(content, str) or (isinstance(content, list) and all(map(_is_part, content)))


def _is_part(part: Any) -> bool:
    if not isinstance(part, dict):
        return False
    return isinstance(part.get("text"), str) if part.get("type") == "text" else isinstance(part.get("image"), Image)


def copied(value: Any) -> Any:
    """Copy nested dicts and lists; what they hold (texts, numbers, images) never changes and is shared."""
    if isinstance(value, dict):
        return {name: copied(entry) for name, entry in value.items()}
    return [copied(entry) for entry in value] if isinstance(value, list) else value


def truncate(messages: list[dict[str, Any]], joint: str) -> tuple[list[dict[str, Any]], str]:
    """Cut the texts of messages so that they have at most `MAX_OBSERVATION_CHARS` characters together.

    Lone surrogates are replaced, see `encodable`. Images stay as they are.

    Args:
        messages: what to cut.
        joint: stands between two of them in their joint text.

    Returns:
        The messages and their joint text.
    """
    contents = [message["content"] for message in messages]
    text = joint.join(map(text_of, contents))
    limit = MAX_OBSERVATION_CHARS
    if len(text) + len(joint) > limit:
        plain = all(isinstance(content, str) for content in contents)
        pieces = sum(1 if isinstance(content, str) else len(content) for content in contents)
        limit = limit // pieces - (len(joint) if plain else max(len(joint), len(PLACEHOLDER)))
    elif text.isascii():
        return messages, text
    messages = [{**message, "content": _cut_content(message["content"], limit)} for message in messages]
    return messages, joint.join(text_of(message["content"]) for message in messages)


def encodable(text: str) -> str:
    """Replace lone surrogates, which no tokenizer and no file can encode."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _cut_content(content: Content, limit: int) -> Content:
    if isinstance(content, str):
        return _cut(content, limit)
    return [{**part, "text": _cut(part["text"], limit)} if part["type"] == "text" else part for part in content]


def _cut(text: str, limit: int) -> str:
    return encodable(text if len(text) <= limit else text[: limit - len(_CUT)] + _CUT)


class Vision:
    """The image side of a multimodal processor.

    Args:
        processor: of transformers, with a tokenizer and an image processor.

    Attributes:
        token: the text of an image token.
        token_id: its id.
        stand_in: what a model is shown for an image token that the policy sampled.
    """

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self.token: str = processor.image_token
        self.token_id: int = processor.tokenizer.convert_tokens_to_ids(self.token)
        self.stand_in: int = processor.tokenizer.eos_token_id
        self._expansions: dict[tuple[int, int], str] = {}

    @classmethod
    def of(cls, encoder: Any) -> Vision | None:
        """Return the image side of what encodes for a model; None for a tokenizer."""
        sees = hasattr(encoder, "image_processor") and isinstance(getattr(encoder, "image_token", None), str)
        return cls(encoder) if sees else None

    def expand(self, text: str, messages: Sequence[Mapping[str, Any]]) -> str:
        """Write out the image tokens of a rendered text.

        Args:
            text: what the template made of the messages.
            messages: whose images they are, in their order.

        Raises:
            ConfigError: if the template shows more or fewer images than there are.
        """
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
        shown, used = [], 0
        for image, count in zip(images, counts, strict=True):
            shown.append(Shown(image, positions[used], positions[used + count - 1] + 1))
            used += count
        return shown

    def count(self, image: Image) -> int:
        """Return how many image tokens an image takes."""
        return self._expansion(image).count(self.token)

    def readable(self, ids: Sequence[int], shown: Sequence[Shown]) -> list[int]:
        """Return ids in which no image token stands outside of an image."""
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
        """Return what a model reads of images, one after the other along the first axis, as tensors on the CPU.

        For Qwen2-VL `pixel_values`, (patches of all images, numbers of a patch), and `image_grid_thw`, (images, 3).
        """
        if not images:
            return {}
        return dict(self._read(images, "pt"))

    def _expansion(self, image: Image) -> str:
        # A function of the size alone: what is on the image does not matter to any processor.
        if image.size not in self._expansions:
            found = self._read([image], "np")
            try:
                self._expansions[image.size] = self.processor.replace_image_token(found, 0)
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
