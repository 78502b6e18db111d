"""The front page's figure of other frameworks has figures of the comparison, and no others."""

import pytest

from docs import peers


def test_the_figure_is_drawn_from_its_data() -> None:
    assert peers.FIGURE.read_text(encoding="utf-8") == peers.drawn(), "python docs/peers.py draws it again"


@pytest.mark.parametrize("one", peers.ALL, ids=lambda one: one.peer)
def test_every_figure_stands_in_the_comparison(one: peers.Measured) -> None:
    text = " ".join((peers.DOCS / "comparison.md").read_text(encoding="utf-8").split())
    assert one.source in text
    assert f"{one.times:g}" in one.source
