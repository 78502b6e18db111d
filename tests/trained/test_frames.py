"""Whatever an environment renders becomes an RGB frame, or is named as no picture."""

import numpy as np
import pytest

from marlflow.trained.video import TEXT_SIZE, FrameInvalid, rgb_frame, text_frame

COLORS = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)


def test_frames_of_bytes_stay_as_they_are():
    np.testing.assert_array_equal(rgb_frame(COLORS), COLORS)
    assert rgb_frame(np.swapaxes(COLORS, 0, 1)).flags.c_contiguous


@pytest.mark.parametrize("gray", [COLORS[..., 0], COLORS[..., :1]])
def test_gray_frames_get_three_channels(gray):
    np.testing.assert_array_equal(rgb_frame(gray), np.repeat(COLORS[..., :1], 3, axis=2))


def test_an_alpha_channel_is_removed():
    with_alpha = np.concatenate([COLORS, np.full((2, 3, 1), 7, np.uint8)], axis=2)
    np.testing.assert_array_equal(rgb_frame(with_alpha), COLORS)


@pytest.mark.parametrize(("rendered", "value"), [(0.0, 0), (1.0, 255), (0.5, 127), (7.0, 255), (-1.0, 0), (np.nan, 0)])
def test_floats_are_from_0_to_1(rendered, value):
    assert rgb_frame(np.full((2, 2, 3), rendered)).tolist() == np.full((2, 2, 3), value).tolist()


def test_wide_integers_are_clipped():
    assert rgb_frame(np.array([[300, -5]], np.int64))[0, :, 0].tolist() == [255, 0]


def test_of_a_list_the_last_frame_is_taken():
    np.testing.assert_array_equal(rgb_frame([np.zeros((2, 2, 3), np.uint8), COLORS]), COLORS)


@pytest.mark.parametrize("nothing", [None, [], ()])
def test_nothing_is_no_frame(nothing):
    assert rgb_frame(nothing) is None


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (np.zeros((2, 2, 2)), r"an array of shape \(2, 2, 2\)"),
        (np.zeros((0, 2, 3)), r"an array of shape \(0, 2, 3\)"),
        (np.zeros(3), r"an array of shape \(3,"),
        (object(), "a object, which is no picture"),
        ({"a": 1}, "a dict, which is no picture"),
    ],
)
def test_what_is_no_picture_is_named(wrong, reason):
    with pytest.raises(FrameInvalid, match=reason):
        rgb_frame(wrong)


def test_text_is_drawn_within_the_frame():
    frame = rgb_frame("x . o\n. x .")
    assert frame.shape == (TEXT_SIZE[1], TEXT_SIZE[0], 3)
    dark = np.argwhere(frame[..., 0] < 128)
    assert len(dark)
    assert dark.min() >= 20 - 1


def test_long_text_is_drawn_smaller_instead_of_cut():
    frame = text_frame("\n".join(f"line {number} " + "x" * 60 for number in range(30)))
    dark = np.argwhere(frame[..., 0] < 200)
    assert (dark.max(axis=0) < (TEXT_SIZE[1] - 5, TEXT_SIZE[0] - 5)).all()
