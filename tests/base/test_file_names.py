"""Names on disk are distinct, short enough, and lead nowhere else."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.base.files import file_name, is_signed, signature_of

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


@pytest.mark.parametrize("has_links", [True, False])
def test_a_key_is_made_once_and_no_draft_of_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "no hard links here")

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    if not has_links:
        monkeypatch.setattr(os, "link", refused)
    signatures = {signature_of(b"content") for _ in range(3)}
    assert len(signatures) == 1
    assert None not in signatures
    assert [path.name for path in (tmp_path / "marlflow").iterdir()] == ["key"]
    assert is_signed(b"content", signatures.pop())
    assert not is_signed(b"another", signature_of(b"content"))
