"""Videos are read back frame by frame."""

import sys
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from marlflow.base.errors import ConfigInvalid
from marlflow.trained.video import VideoWriter, check_video_path

av = pytest.importorskip("av")

FORMATS = ["mp4", "webm", "gif", "webp"]
PICTURES = ["gif", "webp"]


def marked(number, height=48, width=64):
    """A gray frame with a bar whose place says the number."""
    frame = np.full((height, width, 3), 90, np.uint8)
    frame[:, 4 * number : 4 * number + 4] = (250, 30, 30)
    return frame


def number_of(frame):
    return int(frame[..., 0].astype(int).mean(axis=0).argmax()) // 4


def read(path):
    if path.suffix == ".webp":
        # FFmpeg writes animated WebP files, and does not read them.
        return read_by_pillow(path)
    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        frames = [(float(frame.time), frame.to_ndarray(format="rgb24")) for frame in file.decode(stream)]
        return frames, float(stream.average_rate)


def read_by_pillow(path):
    frames, time_ms = [], 0
    with Image.open(path) as image:
        for number in range(image.n_frames):
            image.seek(number)
            frames.append((time_ms / 1000, np.asarray(image.convert("RGB"))))
            time_ms += image.info["duration"]
    # A single frame is a picture, without a duration.
    return frames, 1000 * len(frames) / max(time_ms, 1)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_frame_is_there_in_order_and_at_its_time(tmp_path, kind):
    path = tmp_path / f"out.{kind}"
    with VideoWriter(path, fps=25) as video:
        for number in range(12):
            video.add(marked(number))
    frames, rate = read(path)
    assert [number_of(frame) for _, frame in frames] == list(range(12))
    assert rate == pytest.approx(25, rel=0.02)
    assert all(later - earlier == pytest.approx(1 / 25, abs=0.002) for (earlier, _), (later, _) in pairwise(frames))
    assert (video.frames, video.size) == (12, (64, 48))
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("kind", FORMATS)
def test_frames_are_scaled_down_to_the_longest_side(tmp_path, kind):
    path = tmp_path / f"out.{kind}"
    with VideoWriter(path, fps=10, longest_side=32) as video:
        for number in range(3):
            video.add(marked(number, height=48, width=64))
    assert video.size == (32, 24)
    assert {frame.shape for _, frame in read(path)[0]} == {(24, 32, 3)}


@pytest.mark.parametrize("kind", PICTURES)
def test_pillow_reads_animated_pictures_which_repeat_for_ever(tmp_path, kind):
    with VideoWriter(tmp_path / f"out.{kind}", fps=10) as video:
        for number in range(5):
            video.add(marked(number))
    with Image.open(tmp_path / f"out.{kind}") as image:
        assert image.n_frames == 5
        assert image.info["loop"] == 0
        # Durations of a WebP file are known frame by frame.
        image.load()
        assert image.info["duration"] == 100
        assert image.size == (64, 48)


@pytest.mark.parametrize("kind", PICTURES)
def test_animated_pictures_are_no_faster_than_browsers_show_them(tmp_path, kind):
    with VideoWriter(tmp_path / f"out.{kind}", fps=100) as video:
        video.add(marked(0))
        video.add(marked(1))
    assert video.fps == 50


@pytest.mark.parametrize(
    ("kind", "size"), [("mp4", (34, 52)), ("webm", (34, 52)), ("gif", (33, 51)), ("webp", (33, 51))]
)
def test_odd_sizes_are_padded_where_the_format_needs_it(tmp_path, kind, size):
    path = tmp_path / f"out.{kind}"
    with VideoWriter(path, fps=10) as video:
        video.add(marked(2, height=51, width=33))
    ((_, frame),), _ = read(path)
    assert frame.shape == (size[1], size[0], 3)
    assert number_of(frame) == 2
    # No black edge: the last row and column continue the picture.
    assert abs(frame[-1, 0].astype(int) - 90).max() < 12
    assert abs(frame[0, -1].astype(int) - 90).max() < 12


def test_colors_are_kept(tmp_path):
    colors = [(255, 0, 0), (0, 160, 60), (20, 20, 200), (255, 255, 255), (0, 0, 0)]
    for kind in FORMATS:
        with VideoWriter(tmp_path / f"out.{kind}", fps=1) as video:
            for color in colors:
                video.add(np.full((32, 32, 3), color, np.uint8))
        frames, _ = read(tmp_path / f"out.{kind}")
        for color, (_, frame) in zip(colors, frames, strict=True):
            assert abs(frame[16, 16].astype(int) - color).max() <= 6, kind


def test_frames_of_other_sizes_are_fitted_into_the_first(tmp_path):
    path = tmp_path / "out.gif"
    with VideoWriter(path, fps=10) as video:
        video.add(np.full((40, 60, 3), 200, np.uint8))
        video.add(np.full((20, 20, 3), 200, np.uint8))
        video.add(np.full((80, 240, 3), 200, np.uint8))
    (_, small), (_, large) = read(path)[0][1:]
    lit = [np.argwhere(frame[..., 0] > 100) for frame in (small, large)]
    # The smaller one is centered, the larger one is scaled to the width.
    assert [one.min(axis=0).tolist() + one.max(axis=0).tolist() for one in lit] == [[10, 20, 29, 39], [10, 0, 29, 59]]


def test_after_an_error_the_frames_until_then_are_there(tmp_path):
    path = tmp_path / "out.mp4"

    def interrupted():
        with VideoWriter(path, fps=10) as video:
            for number in range(3):
                video.add(marked(number))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [number_of(frame) for _, frame in read(path)[0]] == [0, 1, 2]


def test_without_frames_there_is_no_file(tmp_path):
    with VideoWriter(tmp_path / "out.mp4", fps=10):
        pass
    assert not list(tmp_path.iterdir())


def test_a_repeated_frame_is_counted(tmp_path):
    with VideoWriter(tmp_path / "out.gif", fps=10) as video:
        video.add(marked(3))
        video.repeat()
    assert (video.frames, video.repeated) == (2, 1)
    assert [number_of(frame) for _, frame in read(tmp_path / "out.gif")[0]] == [3, 3]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("out.avi", r"must end in \.mp4, \.webm, \.gif, \.webp, not '\.avi'"),
        ("out", "which this name lacks"),
        ("there/out.mp4", "there is no folder"),
        (".", "which this name lacks|is a folder"),
    ],
)
def test_paths_that_cannot_be_written_are_refused_first(tmp_path, name, problem):
    with pytest.raises(ConfigInvalid, match=problem):
        check_video_path(tmp_path / name)


def test_a_missing_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ConfigInvalid, match=r"pip install 'marlflow\[video\]'"):
        check_video_path(tmp_path / "out.mp4")
