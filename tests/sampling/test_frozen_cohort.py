"""Frozen entries of one policy act in one call per tick, and every one as a policy of its own would."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete

import marlflow as mf
from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.base.spaces import Spaces
from marlflow.batches.items import Weights
from marlflow.env.games import cartpole_team
from marlflow.policy.actor_critic import stochastic_actor
from marlflow.policy.recurrent import recurrent_stochastic_actor
from marlflow.policy.stacked import StackedMembers
from marlflow.sampling import RolloutWorker, SamplerConfig, weights_table
from marlflow.sampling.protocol import EvaluationRequest, FrozenPolicy, Request
from tests.driver.kept_runs import assert_equal
from tests.sampling.workers import rows_in

ENTRIES, ENVS = 20, range(12)
TWO_CARTS = partial(cartpole_team.CartPoleTeam, 2)
SPACES = Spaces(cartpole_team.CartPoleTeam(2).observation_space("cart_0"), Discrete(2))
ACTORS: dict[str, Callable[[], mf.Actor]] = {
    "mlp": lambda: stochastic_actor(SPACES, mf.MLP((8, 8)), torch.Generator().manual_seed(0)),
    "gru": lambda: recurrent_stochastic_actor(SPACES, mf.GRU(8, (6,)), torch.Generator().manual_seed(0)),
    "q": lambda: mf.QNetwork(SPACES, mf.MLP((8, 8)), False, 0).actor,
}


def weights(kind: str, version: int) -> Weights:
    random = np.random.default_rng(version)
    flat: Any = ACTORS[kind]().flat()  # type: ignore[attr-defined]
    return Weights(version, random.standard_normal(flat.shape).astype(np.float32))


def scheduled(kind: str, version: int) -> dict[str, float]:
    return {"epsilon": 0.04 * version} if kind == "q" else {}


def worker(kind: str, env: Any, policies: list[str], envs: Any = ENVS) -> RolloutWorker:
    config = SamplerConfig(env, envs, None, 3, spaces=dict.fromkeys(policies, SPACES))
    return RolloutWorker(config, dict.fromkeys(policies, ACTORS[kind]))


def frozen(kind: str) -> dict[str, FrozenPolicy]:
    return {f"main@{n}": FrozenPolicy("main", weights(kind, n), scheduled(kind, n)) for n in range(ENTRIES)}


def dealt(seed: int, envs: Any = ENVS, entries: int = ENTRIES) -> dict[int, list[dict[str, str]]]:
    """The live policy against a frozen one, on either seat; now and then two frozen ones."""
    random, games = np.random.default_rng(seed), {}
    for index in envs:
        drawn = random.integers(entries, size=(8, 2)).tolist()
        games[index] = [
            dict(zip(("cart_0", "cart_1"), seats, strict=True))
            for one, other in drawn
            for seats in [
                [("main", f"main@{one}"), (f"main@{one}", "main"), (f"main@{one}", f"main@{other}")][random.integers(3)]
            ]
        ]
    return games


def assert_same_rows(one: Any, other: Any) -> None:
    assert_equal(*(rows_in(each[1])["main"]["columns"] for each in (one, other)))


@pytest.mark.parametrize("env", [cartpole_team.parallel_env, cartpole_team.env], ids=["parallel", "aec"])
@pytest.mark.parametrize("kind", ACTORS)
def test_rows_against_frozen_entries_are_those_against_policies_with_the_same_weights(kind: str, env: Any) -> None:
    make_env = lambda: env(num_agents=2)  # noqa: E731
    playing = worker(kind, make_env, ["main"])
    rivals = [f"main@{number}" for number in range(ENTRIES)]
    plain = worker(kind, make_env, ["main", *rivals])
    entries, main = frozen(kind), weights(kind, 100)
    published = {"main": main} | {name: entry.weights for name, entry in entries.items()}
    schedules = {"main": scheduled(kind, 1)} | {name: dict(entry.scheduled) for name, entry in entries.items()}
    for seed, ticks in enumerate((30, 1, 64)):
        games = dealt(seed)
        own = {"main": schedules["main"]}
        found = playing.collect(ticks, Request(0, {"main": main}, own, games, entries))
        expected = plain.collect(ticks, Request(0, published, schedules, games))
        assert found[0].episodes == expected[0].episodes
        assert found[0].agent_steps == expected[0].agent_steps
        assert_same_rows(found, expected)
        assert found[1]["main"].rows > 0


def counted_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many members act in each call from now on."""
    groups: list[int] = []
    act = StackedMembers.act

    def counted(members: StackedMembers, rows: Any, *given: Any) -> Any:
        groups.append(len(rows.slots))
        return act(members, rows, *given)

    monkeypatch.setattr(StackedMembers, "act", counted)
    return groups


def test_a_tick_costs_one_call_for_all_frozen_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = counted_calls(monkeypatch)
    playing = worker("mlp", TWO_CARTS, ["main"])
    playing.collect(9, Request(0, {"main": weights("mlp", 100)}, {}, dealt(0), frozen("mlp")))
    assert len(groups) == 9
    assert min(groups) > 5


def test_slots_without_lanes_are_given_up_by_least_recent_use() -> None:
    unbounded = worker("mlp", TWO_CARTS, ["main"])
    bounded = worker("mlp", TWO_CARTS, ["main"])
    bounded._table._worker_members = 2
    entries, main, most = frozen("mlp"), {"main": weights("mlp", 100)}, 0
    for seed in range(12):
        games = dealt(seed)
        # Entries are sent once: after that, the worker has to find their weights itself.
        sent = {} if seed else entries
        expected = unbounded.collect(17, Request(0, main, {}, games, sent))
        found = bounded.collect(17, Request(0, main, {}, games, sent))
        assert found[0].episodes == expected[0].episodes
        assert_same_rows(found, expected)
        most = max(most, len(slots_of(bounded)))
    assert len(slots_of(unbounded)) == ENTRIES
    bounded.collect(0, Request(0, {}, {}, {}))
    assert len(slots_of(bounded)) < ENTRIES
    assert set(bounded._table) == {"main", *entries}


def slots_of(playing: RolloutWorker) -> dict[str, int]:
    [cohort] = playing._table._cohorts.values()
    return cohort.members._slots


def test_least_recently_seated_entries_give_up_first_and_seated_ones_never() -> None:
    members = weights_table.CohortMembers(ACTORS["mlp"], ACTORS["mlp"](), with_critic=False)
    for name, entry in list(frozen("mlp").items())[:4]:
        members.add(name, entry)
    assert members.slot("main@0") == 0  # seated again, so it is the most recent one
    members.trim({1}, most_idle=1)
    assert members._slots == {"main@1": 1, "main@0": 0}
    assert members.slot("main@3") in (2, 3)
    assert members.versions[members.slot("main@3")] == 3
    members.forget("main@1")
    assert set(members._slots) == {"main@0", "main@3"}


def test_evaluation_uses_the_same_members_and_leaves_training_as_it_was() -> None:
    entries, main = frozen("mlp"), {"main": weights("mlp", 100)}
    playing, undisturbed = (worker("mlp", TWO_CARTS, ["main"]) for _ in range(2))
    for seed in range(3):
        games = dealt(seed, entries=5)
        sent = {} if seed else {name: entries[name] for name in list(entries)[:5]}
        found = playing.collect(13, Request(0, main, {}, games, sent))
        assert_same_rows(found, undisturbed.collect(13, Request(0, main, {}, games, sent)))
        seats = [{"cart_0": "main", "cart_1": f"main@{5 + 5 * seed + number}"} for number in range(5)]
        evaluated = playing.evaluate(EvaluationRequest(range(5), main, seats, "greedy", entries))
        assert [result.matchup for result in evaluated.episodes] == seats
    again = playing.evaluate(EvaluationRequest(range(5), main, seats, "greedy"))
    assert again.episodes == evaluated.episodes


@pytest.mark.parametrize("kind", ["mlp", "gru"])
def test_a_resume_with_other_slots_goes_on_bit_for_bit(kind: str) -> None:
    entries, main = frozen(kind), {"main": weights(kind, 100)}
    playing = worker(kind, TWO_CARTS, ["main"])
    playing.collect(17, Request(0, main, {}, dealt(0), entries))
    kept = from_bytes(to_bytes(playing.state()))
    other = worker(kind, TWO_CARTS, ["main"])
    backwards = dict(reversed(entries.items()))
    assert other.load_state(kept, 10_000, backwards).episodes_abandoned == 0
    assert slots_of(other) != slots_of(playing)
    for seed, ticks in ((1, 20), (2, 31)):
        one, same = (made.collect(ticks, Request(0, main, {}, dealt(seed))) for made in (playing, other))
        assert one[0].episodes == same[0].episodes
        assert_same_rows(one, same)
    assert_equal(playing.state(), other.state())


def test_evaluation_may_give_entries_of_one_cohort_different_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[tuple[str, int]] = []
    members_slots = dict.fromkeys(range(ENTRIES), -1)
    act = StackedMembers.act

    def watched(members: StackedMembers, rows: Any, obs: Any, mask: Any, memory: Any, mode: Any, given: Any) -> Any:
        modes.extend((mode, members_slots[slot]) for slot in rows.slots.tolist())
        return act(members, rows, obs, mask, memory, mode, given)

    monkeypatch.setattr(StackedMembers, "act", watched)
    playing = worker("mlp", TWO_CARTS, ["main"])
    entries = frozen("mlp")
    playing.collect(1, Request(0, {"main": weights("mlp", 100)}, {}, dealt(0), entries))
    members_slots |= {slot: int(name.removeprefix("main@")) for name, slot in slots_of(playing).items()}
    modes.clear()
    seats = [{"cart_0": "main@1", "cart_1": "main@2"}]
    playing.evaluate(EvaluationRequest([0], {}, seats, {"main": "sampled", "main@2": "greedy"}))
    assert set(modes) == {("sampled", 1), ("greedy", 2)}
