"""Converts what an environment renders to RGB frames."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from marlflow.base.arrays import Array

TEXT_SIZE = (640, 480)
"""Width and height of a frame of text, in pixels."""
_MARGIN, _LARGEST, _SMALLEST = 20, 32, 6


class FrameInvalid(Exception):
    """`render()` returned something that is no picture; the message says what."""


def rgb_frame(rendered: Any) -> Array | None:
    """Return what `render()` returned as an RGB frame, uint8 [height, width, 3], or None if it returned nothing.

    Of a list of frames, the last is taken. Text is drawn. Gray frames, [height, width] or [height, width, 1], get three
    channels; an alpha channel is removed; floats are from 0 to 1. Raises FrameInvalid for anything else.
    """
    if isinstance(rendered, list | tuple):
        rendered = rendered[-1] if rendered else None
    if rendered is None:
        return None
    if isinstance(rendered, str):
        return text_frame(rendered)
    try:
        frame = np.asarray(rendered)
    except ValueError as error:
        raise FrameInvalid(f"a {type(rendered).__name__} that is no array: {error}") from error
    if frame.dtype.kind not in "buif":
        raise FrameInvalid(f"a {type(rendered).__name__}, which is no picture")
    if frame.ndim == 2:
        frame = frame[..., None]
    if frame.ndim != 3 or frame.shape[2] not in (1, 3, 4) or 0 in frame.shape:
        raise FrameInvalid(f"an array of shape {frame.shape}, not [height, width, 3]")
    return np.ascontiguousarray(np.broadcast_to(_bytes(frame)[..., :3], (*frame.shape[:2], 3)))


def _bytes(frame: Array) -> Array:
    if frame.dtype == np.uint8:
        return frame
    scaled = np.nan_to_num(frame) * 255.0 if frame.dtype.kind in "bf" else frame
    return np.clip(scaled, 0, 255).astype(np.uint8)


def text_frame(text: str) -> Array:
    r"""Draw `text`, dark on white, in a frame of TEXT_SIZE; long text is drawn smaller.

    >>> text_frame("x o\n. x").shape
    (480, 640, 3)
    """
    from PIL import Image, ImageDraw

    # A tab has no width of its own in a picture.
    text = text.expandtabs(4).rstrip() or " "
    image = Image.new("RGB", TEXT_SIZE, "white")
    draw = ImageDraw.Draw(image)
    room = tuple(side - 2 * _MARGIN for side in TEXT_SIZE)
    for size in range(_LARGEST, _SMALLEST - 1, -1):
        left, top, right, bottom = draw.multiline_textbbox((0, 0), text, font=_font(size))
        if right - left <= room[0] and bottom - top <= room[1]:
            break
    draw.multiline_text((_MARGIN, _MARGIN), text, fill=(20, 20, 20), font=_font(size))
    return np.asarray(image)


@cache
def _font(size: int) -> Any:
    import matplotlib
    from PIL import ImageFont

    # A font of fixed width that comes with matplotlib, so that boards are aligned on every machine.
    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSansMono.ttf"), size)
