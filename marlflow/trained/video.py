"""Writes videos frame by frame with PyAV: mp4 (H.264), webm (VP9), gif, webp; makes frames of renderings.

A file is written under another name, and renamed when it is complete.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid, MarlflowError

TEXT_SIZE = (640, 480)
"""Width and height of a frame of text, in pixels."""
_MARGIN, _LARGEST, _SMALLEST = 20, 32, 6


class FrameInvalid(Exception):
    """`render()` returned something that is no picture; the message says what."""


def rgb_frame(rendered: Any) -> Array | None:
    """Return the result of `render()` as an RGB frame, uint8 [height, width, 3], or None if it returned nothing.

    If it is a list of frames, the last one is taken. Text is drawn. Gray frames, [height, width] or [height, width, 1],
    get three channels; an alpha channel is removed; floats are from 0 to 1. Raises FrameInvalid for anything else.
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

    # A tab has no width in a picture.
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


PICTURE_FPS: Final = 50.0
"""Frames per second of a gif or webp at most: browsers slow down a quicker one."""


@dataclass(frozen=True, slots=True)
class _Format:
    codec: str
    pixels: str
    options: Mapping[str, str]
    container: Mapping[str, str] = field(default_factory=dict)


# yuv420p, because browsers and most players show no other pixels of H.264; it needs even sizes.
_FORMATS: Mapping[str, _Format] = {
    ".mp4": _Format("libx264", "yuv420p", {"crf": "18", "preset": "medium"}, {"movflags": "+faststart"}),
    ".webm": _Format("libvpx-vp9", "yuv420p", {"crf": "24", "b": "0", "deadline": "good", "cpu-used": "4"}),
    ".gif": _Format("gif", "pal8", {}),
    ".webp": _Format("libwebp_anim", "bgra", {"quality": "80"}, {"loop": "0"}),
}
_PICTURES = (".gif", ".webp")
_BT709 = 1


def check_video_path(path: Path) -> None:
    """Raise ConfigInvalid if a video cannot be written to `path`: its format, its folder, or a missing package."""
    if path.suffix.lower() not in _FORMATS:
        wrong = f"not {path.suffix!r}" if path.suffix else "which this name lacks"
        raise ConfigInvalid([f"{path} is no video: its name must end in {', '.join(_FORMATS)}, {wrong}"])
    if path.is_dir():
        raise ConfigInvalid([f"{path} is a folder; name a file to write the video to, such as {path / 'out.mp4'}"])
    if not path.absolute().parent.is_dir():
        raise ConfigInvalid([f"there is no folder {path.parent} to write {path.name} to; make it first"])
    if not os.access(path.absolute().parent, os.W_OK):
        raise ConfigInvalid([f"{path.parent} cannot be written to; name another folder for the video"])
    import_av()


def import_av() -> Any:
    """Import PyAV; raises ConfigInvalid that names the extra if it is missing."""
    try:
        import av
        import av.logging
    except ImportError as error:
        raise ConfigInvalid([f"videos need PyAV: {error}; pip install 'marlflow[video]'"]) from error
    av.logging.set_level(av.logging.ERROR)
    return av


class VideoWriter:
    """Writes RGB frames, uint8 [height, width, 3], to `path` at `fps` frames per second.

        with VideoWriter(Path("out.mp4"), fps=30) as video:
            video.add(frame)

    The first frame sets the size, rounded up to even numbers unless the file is a gif or webp, and at most
    `longest_side` pixels wide and high (None: any); frames are scaled down to it if they are larger, and centered on
    black. Frames are encoded at once, so memory does not grow. Also after an exception, the file has the frames up to
    then; without any frame there is no file.
    """

    def __init__(self, path: Path, fps: float, longest_side: int | None = None) -> None:
        check_video_path(path)
        self.path = path
        self._longest_side = longest_side
        self.frames = self.repeated = 0
        self._last: Array | None = None
        self._kind = path.suffix.lower()
        self.fps = min(fps, PICTURE_FPS) if self._kind in _PICTURES else fps
        self._rate = Fraction(self.fps).limit_denominator(1001)
        self._aside = path.with_name(f"{path.name}.part")
        self._container: Any = None
        self._stream: Any = None
        self._palettes: Any = None
        self.size = (0, 0)
        """Width and height in pixels, known after the first frame."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def add(self, frame: Array) -> None:
        """Append a frame; raises MarlflowError if it cannot be written."""
        av = import_av()
        try:
            if self._container is None:
                self._open(av, frame)
            picture = av.VideoFrame.from_ndarray(self._fitted(av, frame), format="rgb24")
            picture.pts, picture.time_base = self.frames, 1 / self._rate
            self._encode(av, picture)
        except (OSError, av.FFmpegError) as error:
            raise MarlflowError(f"{self.path} cannot be written: {error}") from error
        self.frames += 1
        self._last = frame

    def repeat(self) -> None:
        """Append the last frame once more, and count it in `repeated`; raises ValueError if there is none."""
        if self._last is None:
            raise ValueError("there is no frame to repeat")
        self.add(self._last)
        self.repeated += 1

    def close(self) -> None:
        """Complete the file; raises MarlflowError if it cannot be written."""
        if self._container is None:
            return
        av, container = import_av(), self._container
        self._container = None
        try:
            if self._palettes is not None:
                self._encode_indexed(av, container, None)
            container.mux(self._stream.encode(None))
            container.close()
            os.replace(self._aside, self.path)
        except (OSError, av.FFmpegError) as error:
            with suppress(OSError):
                self._aside.unlink(missing_ok=True)
            raise MarlflowError(f"{self.path} cannot be written: {error}") from error

    def _open(self, av: Any, frame: Array) -> None:
        height, width = frame.shape[:2]
        factor = min(1.0, (self._longest_side or math.inf) / max(height, width))
        height, width = max(1, round(height * factor)), max(1, round(width * factor))
        form = _FORMATS[self._kind]
        even = 0 if self._kind in _PICTURES else 1
        # Made smaller, it is never larger than was asked for.
        by = 1 if factor == 1.0 else -1
        self.size = max(1 + even, width + by * (width & even)), max(1 + even, height + by * (height & even))
        self._container = av.open(str(self._aside), "w", format=self._kind[1:], options=dict(form.container))
        stream = self._container.add_stream(form.codec, rate=self._rate, options=dict(form.options))
        stream.width, stream.height = self.size
        stream.pix_fmt, stream.time_base = form.pixels, 1 / self._rate
        if self._kind == ".gif":
            self._palettes = _palettes(av, self.size, 1 / self._rate)
        else:
            # Otherwise players guess the colors of a video from its size.
            context = stream.codec_context
            context.colorspace = context.color_primaries = context.color_trc = _BT709
        self._stream = stream

    def _fitted(self, av: Any, frame: Array) -> Array:
        height, width = frame.shape[:2]
        if (width, height) == self.size:
            return frame
        factor = min(1.0, self.size[0] / width, self.size[1] / height)
        if factor < 1:
            width, height = max(1, int(width * factor)), max(1, int(height * factor))
            picture = av.VideoFrame.from_ndarray(frame, format="rgb24")
            frame = picture.reformat(width=width, height=height).to_ndarray(format="rgb24")
        if 0 <= self.size[0] - width <= 1 and 0 <= self.size[1] - height <= 1:
            # Repeating the edge is less visible than a black line.
            return np.pad(frame, ((0, self.size[1] - height), (0, self.size[0] - width), (0, 0)), mode="edge")
        canvas = np.zeros((self.size[1], self.size[0], 3), np.uint8)
        top, left = (self.size[1] - height) // 2, (self.size[0] - width) // 2
        canvas[top : top + height, left : left + width] = frame
        return canvas

    def _encode(self, av: Any, picture: Any) -> None:
        if self._palettes is not None:
            self._encode_indexed(av, self._container, picture)
            return
        pixels = _FORMATS[self._kind].pixels
        picture = picture.reformat(format=pixels, dst_colorspace="ITU709")
        self._container.mux(self._stream.encode(picture))

    def _encode_indexed(self, av: Any, container: Any, picture: Any) -> None:
        self._palettes.push(picture)
        while True:
            try:
                indexed = self._palettes.pull()
            except (av.error.BlockingIOError, av.error.EOFError):
                return
            container.mux(self._stream.encode(indexed))


def _palettes(av: Any, size: tuple[int, int], time_base: Fraction) -> Any:
    """Return a filter that gives each frame the 256 colors that suit it best."""
    graph = av.filter.Graph()
    begin = graph.add_buffer(width=size[0], height=size[1], format="rgb24", time_base=time_base)
    both, palette = graph.add("split"), graph.add("palettegen", "stats_mode=single")
    use, end = graph.add("paletteuse", "new=1:dither=none"), graph.add("buffersink")
    begin.link_to(both)
    both.link_to(palette, 0, 0)
    both.link_to(use, 1, 0)
    palette.link_to(use, 0, 1)
    use.link_to(end)
    graph.configure()
    return graph
