from hypothesis import given
from hypothesis import strategies as st

from marlflow.observe import wording


@given(st.integers(0, 10**15 - 1))
def test_a_short_count_is_short_and_never_too_high(count: int) -> None:
    text = wording.short_count(count)
    units = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
    shown = float(text[:-1]) * units[text[-1]] if text[-1] in units else float(text)
    assert len(text) <= 5
    assert count * 0.99 <= shown <= count * (1 + 1e-9)


@given(st.floats() | st.none())
def test_any_number_has_a_short_text(value: float | None) -> None:
    assert len(wording.small_number(value)) <= 9
    assert wording.mean_return(value)


def test_no_agents_and_no_faults_read_well() -> None:
    assert wording.agents_phrase([]) == "no agents"
    assert wording.faults_phrase({}) == ""
    assert wording.loss_terms({}) == "-"


def test_the_headline_of_a_loss_is_its_total_or_first_term() -> None:
    assert wording.headline_loss({"policy": 1.0, "total": 2.0}) == 2.0
    assert wording.headline_loss({"td": 3.0, "other": 4.0}) == 3.0
    assert wording.headline_loss({}) is None
