"""What a vision-language model makes of images: how many tokens each takes, where they stand, and what the model reads.

A chat template writes one image token per image. A model wants one per patch that it reads, and only its processor
knows how many those are. So the template's token is expanded before anything is encoded, and the expanded tokens are
words of the world like those around them: spans, masks and budgets need not know about images.

An image token that the policy samples is no image, since none belongs to it. It ends the policy's turn, is trained as
any sampled token, and is shown to models as an end of turn from then on (`readable`): so that the images of a row are
always those of the world, in engine and trainer alike.

Everything here goes through the processor that is handed in; nothing imports transformers or torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_gym.errors import ConfigError
from agent_gym.images import Image, Shown, images_of


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
        """Look up the image token."""
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
