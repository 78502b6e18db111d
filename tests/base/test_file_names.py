"""Names on disk are distinct, short enough, and lead nowhere else."""

from hypothesis import given
from hypothesis import strategies as st

from marlflow.base.files import file_name

NAMES = st.text(st.characters() | st.sampled_from("aA.%/-0"), max_size=300)


@given(NAMES, NAMES, st.sampled_from(["", ".safetensors"]))
def test_distinct_names_stay_distinct_whatever_the_file_system_does_with_case(one: str, other: str, end: str) -> None:
    first, second = file_name(one, end), file_name(other, end)
    assert (first.lower() == second.lower()) == (one == other)
    assert len(first.encode()) <= 255
    assert first not in ("", ".", "..", "manifest.json")
    assert "/" not in first


def test_names_too_long_differ_where_they_were_cut() -> None:
    assert file_name("x" * 9_999) != file_name("x" * 9_998 + "y")
