"""A worker's table of weights: frozen entries come and go between collects, and act by their own weights for good."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from marlflow.base.errors import ConfigInvalid
from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.base.spaces import Spaces
from marlflow.batches.items import Weights
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.policy.actor import Acted
from marlflow.sampling import RolloutWorker, SamplerConfig
from marlflow.sampling.protocol import EvaluationRequest, FrozenPolicy, Request

SPACES = Spaces(CartPoleTeam(2).observation_space("cart_0"), Discrete(2))
ALONE = {"cart_0": "main", "cart_1": "main"}
AGAINST = {"cart_0": "main", "cart_1": "main@1"}
EVER = 10_000


class Constant:
    """Acts by its one parameter; its memory counts its decisions; remembers its inputs."""

    memory_shape = (1,)
    made: ClassVar[list[Any]]

    def __init__(self) -> None:
        self.parameter, self.scheduled, self.modes, self.memories = np.zeros(1, np.float32), {}, set(), []
        self.made.append(self)

    def act(self, obs: Any, action_mask: Any, memory: Any, mode: Any, generator: Any) -> Acted:
        self.modes.add(mode)
        self.memories.append(memory.max())
        return Acted(np.full(len(obs), int(self.parameter[0])), np.zeros(len(obs), np.float32), memory + 1)

    def set_schedule(self, values: Any) -> None:
        self.scheduled = dict(values)

    def flat(self) -> Any:
        return self.parameter.copy()

    def load_flat(self, flat: Any) -> None:
        self.parameter[:] = flat


def weights(version: int, action: int) -> Weights:
    return Weights(version, np.full(1, action, np.float32))


def frozen(version: int, action: int, **scheduled: float) -> FrozenPolicy:
    return FrozenPolicy("main", weights(version, action), scheduled)


def worker(env_indices: Any = (0,), **settings: Any) -> tuple[RolloutWorker, list[Constant]]:
    kind: Any = type("Constant", (Constant,), {"made": []})
    config = SamplerConfig(lambda: CartPoleTeam(2), env_indices, None, 3, spaces={"main": SPACES}, **settings)
    return RolloutWorker(config, {"main": kind}), kind.made


def actions_of(batch: Any, agent: int) -> set[int]:
    rows = np.repeat(batch.segments["agent"], batch.segments["length"]) == agent
    return set(batch["action"][rows].tolist())


def test_a_frozen_entry_acts_by_its_own_weights_and_leaves_no_rows() -> None:
    playing, actors = worker()
    dealt = {0: [AGAINST] * 4}
    entries = {"main@1": frozen(2, 1, epsilon=0.9)}
    receipt, batches = playing.collect(
        4, Request(0, {"main": weights(7, 0)}, {"main": {"epsilon": 0.2}}, dealt, entries)
    )
    assert tuple(playing._table) == ("main", "main@1")
    assert [(actor.parameter[0], actor.scheduled) for actor in actors] == [(0, {"epsilon": 0.2}), (1, {"epsilon": 0.9})]
    assert actors[1].modes == {"explore"}
    assert set(batches) == set(receipt.policies) == {"main"}
    assert batches["main"].rows == receipt.policies["main"].rows == 4
    assert receipt.agent_steps == 8
    assert actions_of(batches["main"], 0) == {0}
    assert set(batches["main"].segments["agent"].tolist()) == {0}
    # Newer weights of the live policy change nothing of the frozen one.
    playing.collect(3, Request(0, {"main": weights(8, 0)}, {"main": {"epsilon": 0.1}}, {0: [AGAINST]}))
    assert (actors[1].parameter[0], actors[1].scheduled) == (1, {"epsilon": 0.9})
    assert actors[1].memories == [0, 1, 2, 3, 4, 5, 6]  # a memory of its own, over the end of a fragment


def test_results_name_the_entries_and_rewards_of_frozen_ones_belong_to_nobody_else() -> None:
    playing, _ = worker()
    receipt, batches = playing.collect(
        60, Request(0, {"main": weights(0, 0)}, {}, {0: [AGAINST] * 30}, {"main@1": frozen(0, 1)})
    )
    assert receipt.episodes
    assert {tuple(result.matchup.items()) for result in receipt.episodes} == {tuple(AGAINST.items())}
    issued = sum(result.returns["cart_0"] for result in receipt.episodes)
    ended = np.isin(batches["main"].segments["episode"], [result.episode for result in receipt.episodes])
    rows = np.repeat(ended, batches["main"].segments["length"])
    assert batches["main"]["reward"][rows].sum() == issued
    assert receipt.policies["main"].reward_unattributed == 0.0


def test_an_entry_to_forget_goes_when_no_running_episode_seats_it() -> None:
    playing, actors = worker(env_indices=(0, 1))
    playing.collect(1, Request(0, {"main": weights(0, 0)}, {}, {0: [AGAINST], 1: [ALONE]}, {"main@1": frozen(0, 1)}))
    playing.collect(1, Request(0, {}, {}, {0: [], 1: []}, forget=["main@1"]))
    assert tuple(playing._table) == ("main", "main@1")  # env 0 still plays against it
    assert actors[1].memories == [0, 1]
    played = 0
    while "main@1" in playing._table and played < 300:
        playing.collect(5, Request(0, {}, {}, {0: [ALONE] * 5, 1: [ALONE] * 5}, forget=["main@1"]))
        played += 5
    assert tuple(playing._table) == ("main",)
    receipt, batches = playing.collect(5, Request(0, {}, {}, {0: [ALONE] * 5, 1: [ALONE] * 5}))
    assert actions_of(batches["main"], 1) == {0}
    assert batches["main"].rows == receipt.agent_steps


def test_the_table_grows_again_under_an_id_that_was_forgotten_and_others_keep_their_lanes() -> None:
    playing, actors = worker(env_indices=(0, 1))
    both = {"main@1": frozen(1, 1), "main@2": frozen(2, 1)}
    seated = {"cart_0": "main", "cart_1": "main@2"}
    playing.collect(1, Request(0, {"main": weights(0, 0)}, {}, {0: [seated], 1: [seated]}, both))
    playing.collect(2, Request(0, {}, {}, {0: [], 1: []}, forget=["main@1"]))
    assert tuple(playing._table) == ("main", "main@2")
    assert actors[2].memories == [0, 1, 2]
    playing.collect(1, Request(0, {}, {}, {0: [], 1: []}, {"main@1": frozen(9, 0)}))
    assert tuple(playing._table) == ("main", "main@2", "main@1")
    assert actors[3].parameter[0] == 0
    assert actors[2].memories == [0, 1, 2, 3]


def test_running_episodes_against_frozen_entries_are_played_again_elsewhere() -> None:
    entries = {"main@1": frozen(0, 1)}
    given = ({"main": weights(0, 0)}, {}, {0: [AGAINST] * 9, 1: [AGAINST] * 9})
    playing, _ = worker(env_indices=(0, 1))
    playing.collect(13, Request(0, *given, entries))
    kept = from_bytes(to_bytes(playing.state()))
    other, actors = worker(env_indices=(0, 1))
    assert other.load_state(kept, EVER, entries).episodes_abandoned == 0
    for ticks in (6, 11):
        one, same = (made.collect(ticks, Request(0, *given)) for made in (playing, other))
        assert one[0].episodes == same[0].episodes
        for name, column in one[1]["main"].columns.items():
            np.testing.assert_array_equal(column, same[1]["main"].columns[name])
    assert actors[1].memories[0] > 0  # what the frozen entry remembered was kept too
    without, _ = worker(env_indices=(0, 1))
    assert without.load_state(kept, EVER).episodes_abandoned == 2


def test_evaluation_episodes_seat_frozen_entries_as_they_are() -> None:
    playing, actors = worker()
    seats = [AGAINST, {"cart_0": "main@1", "cart_1": "main"}]
    playing.collect(5, Request(0, {"main": weights(0, 0)}, {}, {0: [ALONE] * 5}))
    evaluated = playing.evaluate(
        EvaluationRequest(range(2), {"main": weights(5, 0)}, seats, "greedy", {"main@1": frozen(0, 1)})
    )
    assert [result.matchup for result in evaluated.episodes] == seats
    assert actors[1].modes == {"greedy"}
    assert tuple(playing._table) == ("main", "main@1")
    _, batches = playing.collect(100, Request(0, {}, {}, {0: [AGAINST] * 100}))
    assert (batches["main"]["version"] == 0).all()
    assert actors[1].modes == {"greedy", "explore"}


def test_entries_act_in_their_own_mode_in_evaluation_and_remember_nothing() -> None:
    playing, actors = worker()
    playing.collect(5, Request(0, {"main": weights(0, 0)}, {}, {0: [AGAINST] * 5}, {"main@1": frozen(0, 1)}))
    made = {"main@2": frozen(0, 1), "main@3": frozen(0, 1)}
    seats = [{"cart_0": "main@2", "cart_1": entry} for entry in ("main", "main@1", "main@3")]
    for actor in actors:
        actor.modes.clear()
        actor.memories.clear()
    playing.evaluate(
        EvaluationRequest(range(3), {}, seats, {"main": "sampled", "main@3": "greedy", "main@1": "greedy"}, made)
    )
    assert [actor.modes for actor in actors] == [{"sampled"}, {"greedy"}, {"sampled"}, {"greedy"}]
    assert [actor.memories[0] for actor in actors] == [0, 0, 0, 0]
    assert playing.evaluate(EvaluationRequest(range(1), {}, [AGAINST], {"rival": "sampled"})).episodes
    assert actors[0].modes == {"sampled", "greedy"}, "policies that are not named are greedy"
    playing.collect(5, Request(0, {}, {}, {0: [AGAINST] * 5}))
    assert actors[1].modes == {"greedy", "explore"}


def test_an_entry_of_a_policy_that_nobody_has_is_refused() -> None:
    playing, _ = worker()
    with pytest.raises(
        ConfigInvalid, match="frozen entry 'rival@1' is of policy 'rival', which no worker has; there are main"
    ):
        playing.collect(1, Request(frozen={"rival@1": FrozenPolicy("rival", weights(0, 0))}))
