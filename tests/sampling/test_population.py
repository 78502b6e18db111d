"""The frozen entries that workers hold: the seated ones, and a few that were dealt last."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.batches.items import Weights
from marlflow.sampling.population import Population, PopulationChange

AGENTS = ("left", "right")
ENTRIES = [f"main@{number}" for number in range(8)]


def population(most_held: int) -> Population:
    made = Population({"main": AGENTS}, worker_members=most_held)
    made.apply(PopulationChange(dict.fromkeys(ENTRIES, "main")), {"main": Weights(1, np.zeros(1))}, {})
    return made


def seated(names: Sequence[str]) -> list[dict[str, str]]:
    return [{"left": "main", "right": name} for name in names]


rounds = st.lists(
    st.tuples(st.lists(st.sampled_from(ENTRIES), max_size=4), st.lists(st.integers(0, 3), max_size=2)), max_size=12
)


@given(rounds, st.integers(0, 4), st.integers(0, 12))
def test_workers_hold_all_that_is_seated_and_of_the_others_the_last_ones_dealt(
    drawn: list[tuple[list[str], list[int]]], most_held: int, kept_after: int
) -> None:
    """Against a worker's table as the requests change it, and a list of all entries in the order of their dealing."""
    dealer, table, last_dealt = population(most_held), set[str](), list[str]()
    running: list[str] = []
    for number, (dealt, begun) in enumerate(drawn):
        if number == kept_after:
            store, tree = dealer.store, from_bytes(to_bytes(dealer.state()))
            dealer = Population({"main": AGENTS}, worker_members=most_held, store=store)
            dealer.load_state(tree)
        sent = dealer.send(seated(dealt))
        forget = dealer.take_leaving(sent, seated(running))
        assert not set(forget) & {*dealt, *running}
        assert set(sent) == set(dealt)
        # An entry that was evicted is not held until it is dealt again.
        held, table = table | set(sent), (table - set(forget)) | set(sent)
        for name in dict.fromkeys(dealt):
            last_dealt = [one for one in last_dealt if one != name] + [name]
        needed = {*dealt, *running}
        others = [name for name in last_dealt if name not in needed and name in held]
        assert len(table) <= max(most_held, len(needed))
        unused = table - needed
        assert unused == set(others[len(others) - len(unused) :])
        # Some of the dealt episodes begin, and run until others are dealt in their place.
        running = [*running, *(dealt[index] for index in begun if index < len(dealt))][-2:]
    assert set(dealer.entries) == set(ENTRIES), "all can be dealt again"


def test_an_entry_that_is_evicted_is_sent_again() -> None:
    dealer = population(most_held=1)
    for dealt, expected in [(["main@0"], ()), (["main@1"], ("main@0",)), (["main@0"], ("main@1",))]:
        sent = dealer.send(seated(dealt))
        assert list(sent) == dealt
        assert dealer.take_leaving(sent, []) == expected


def test_forgotten_entries_are_named_until_no_episode_uses_them_and_are_gone() -> None:
    dealer = population(most_held=8)
    dealer.send(seated(["main@0"]))
    dealer.apply(PopulationChange(forget=["main@0"]), {}, {})
    assert dealer.take_leaving({}, seated(["main@0"])) == ("main@0",)
    assert dealer.take_leaving({}, []) == ("main@0",)
    assert dealer.take_leaving({}, []) == ()
    assert "main@0" not in dealer.store
