"""Images in what the world says: parts of a message, and where they stand in a row.

A message's content is a text, or a list of parts as chat templates know them: {"type": "text", "text": ...} and
{"type": "image", "image": Image}. Text stays the interface of Gymnasium: an observation has the word `PLACEHOLDER`
where an image stands, and the parts themselves are in `info["messages"]`.

Left out on purpose: drawing, scaling, and what a model makes of an image (vision.py). An image is stored as PNG, which
takes nothing but zlib; PNG files of others are for Pillow.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from agent_gym.errors import ConfigError

PLACEHOLDER = "<image>"
"""What stands for an image in a text that is for people."""

Part: TypeAlias = dict[str, Any]
Content: TypeAlias = str | list[Part]

_URL = "data:image/png;base64,"
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


class Image:
    """An RGB image that never changes, equal to every image with the same pixels.

    Args:
        pixels: (H, W, 3) uint8; they are copied, so that an environment may go on drawing on its canvas.

    Raises:
        ConfigError: for anything else.
    """

    def __init__(self, pixels: Any) -> None:
        """Copy the pixels."""
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
        """Return the image as a data URL, which browsers, chat servers and trajectory files take."""
        height, width = self.size
        header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
        # A 0 in front of each line: it is stored as it stands and not as the difference to the one above.
        lines = np.zeros((height, 1 + 3 * width), np.uint8)
        lines[:, 1:] = self.pixels.reshape(height, -1)
        chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")]
        return _URL + base64.b64encode(_SIGNATURE + b"".join(_chunk(*one) for one in chunks)).decode()

    @classmethod
    def from_url(cls, url: str) -> Image:
        """Read what `url` wrote.

        Raises:
            ConfigError: for any other image.
        """
        try:
            data = base64.b64decode(url.removeprefix(_URL), validate=True)
            chunks = dict(_chunks(data))
            width, height, *form = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
            lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
        except (ValueError, KeyError, struct.error, zlib.error) as error:
            raise ConfigError(f"no image of a trajectory file: {url[:60]!r} ({error})") from error
        if form != [8, 2, 0, 0, 0] or lines[:, 0].any():
            raise ConfigError("only images that agent_gym wrote are read here: PNG in RGB, lines stored as they stand")
        return cls(lines[:, 1:].reshape(height, width, 3))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Let numpy, and whoever takes arrays, read the pixels."""
        return np.array(self.pixels, dtype=dtype, copy=bool(copy))

    def __eq__(self, other: object) -> bool:
        """Compare pixels."""
        return isinstance(other, Image) and np.array_equal(self.pixels, other.pixels)

    def __hash__(self) -> int:
        """Agree with `==`."""
        return hash(self.digest)

    def __deepcopy__(self, memo: dict[int, Any]) -> Image:
        """Share, since it never changes."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the pixels."""
        return Image, (self.pixels,)

    def __repr__(self) -> str:
        """Show the size and a name for what is on it."""
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
    said = " ".join(text_of(message["content"]) for message in messages)
    return "\0".join([said, *(image.digest for image in images_of(messages))])


def join(contents: Sequence[Content], joint: str) -> Content:
    """Put contents behind each other, a text between each two."""
    if all(isinstance(content, str) for content in contents):
        return joint.join(str(content) for content in contents)
    joined: list[Part] = []
    for i, content in enumerate(contents):
        joined += parts(joint) if i and joint else []
        joined += parts(content) if isinstance(content, str) else content
    return joined


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _chunks(data: bytes) -> Iterable[tuple[bytes, bytes]]:
    if not data.startswith(_SIGNATURE):
        raise ValueError("no PNG")
    at = len(_SIGNATURE)
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        yield data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        at += 12 + length
