"""The inline runtime: the same parts as plain objects, the same numbers every time, and everything closed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from marlflow.algorithms.scripted import Random
from marlflow.base.awaiting import begun
from marlflow.base.serialization import from_bytes
from marlflow.batches.batch import Batch
from marlflow.batches.items import Packed
from marlflow.config.experiment import Env, PlacementOverrides, Policy
from marlflow.env.games import cartpole_team
from marlflow.flow.protocols import OperatorRaised, stage_call
from marlflow.runtime.inline import InlineRuntime
from marlflow.runtime.protocol import RunComponents
from marlflow.runtime.spec import RunSpec
from marlflow.runtime.stage_chain import InlinePlace
from marlflow.sampling.protocol import EvaluationRequest, Request, Round
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, small_spec


@contextmanager
def started(spec: RunSpec) -> Iterator[RunComponents]:
    runtime = InlineRuntime()
    try:
        yield runtime.start(spec)
    finally:
        runtime.close()


def collect(parts: RunComponents, number: int) -> Round:
    weights = parts.published()
    made = begun(parts.workers.collect(Request(number, weights, {"prey": {"epsilon": 0.5}})))
    assert isinstance(made, Round)
    return made


def played(spec: RunSpec, rounds: int = 3) -> dict[tuple[int, int, int], list[float]]:
    """Rewards and actions of every agent of every environment, in order, for any division among workers."""
    found: dict[tuple[int, int, int], list[float]] = {}
    with started(spec) as parts:
        for number in range(rounds):
            for fragment in collect(parts, number).fragments:
                batch = Batch.concat(fragment.payloads)
                names = zip(*(batch[name].tolist() for name in ("env", "agent", "episode")), strict=True)
                for row, name in enumerate(names):
                    found.setdefault(name, []).append(float(batch["action"][row]))
    return found


def test_experience_depends_on_the_seed_and_the_copies_and_not_on_the_workers() -> None:
    from marlflow.config.experiment import Rollouts

    runs = [played(small_spec(rollouts=Rollouts(workers, 80 // workers))) for workers in (1, 2, 4)]
    assert runs[0] == runs[1] == runs[2]
    assert played(small_spec(seed=1)) != played(small_spec())


def test_a_round_has_a_fragment_of_each_worker_and_policy_with_the_rows_it_says() -> None:
    with started(small_spec()) as parts:
        round = collect(parts, 7)
    assert round.number == 7
    assert [(one.worker, one.policy) for one in round.fragments] == [
        (0, "hunters"),
        (0, "prey"),
        (1, "hunters"),
        (1, "prey"),
    ]
    for fragment in round.fragments:
        assert sum(batch.rows for batch in fragment.payloads) == fragment.rows > 0
    assert round.env_steps == 80


def test_actors_begin_with_their_learners_parameters() -> None:
    spec = small_spec()
    with started(spec) as parts:
        for name, learner in parts.learners.items():
            actor: Any = spec.policies[name].actor()
            assert not np.array_equal(actor.flat(), learner.published[learner.name].flat)
            batches = [p for f in collect(parts, 0).fragments if f.policy == name for p in f.payloads]
            assert {int(version) for batch in batches for version in batch["version"]} == {0}


def test_policies_of_one_algorithm_begin_apart() -> None:
    spec = small_spec(policies={"hunters": Policy(SMALL_DQN, SMALL), "prey": Policy(SMALL_DQN, SMALL)})
    with started(spec) as parts:
        one, other = (learner.published[learner.name].flat for learner in parts.learners.values())
    assert one.shape == other.shape
    assert not np.array_equal(one, other)


def test_replays_stand_where_they_are_placed() -> None:
    with started(small_spec()) as parts:
        assert set(parts.replays) == {"prey"}
        assert parts.replays["prey"].place is parts.learners["prey"].place
    own = small_spec(
        policies={
            "hunters": Policy(SMALL_PPO, SMALL),
            "prey": Policy(SMALL_DQN, SMALL, PlacementOverrides(replay="own")),
        }
    )
    with started(own) as parts:
        place = parts.replays["prey"].place
        assert place is not None
        assert place.name == "replay prey"
        assert place is not parts.learners["prey"].place


def test_only_learning_policies_have_learners() -> None:
    with started(small_spec(policies={"hunters": Policy(Random()), "prey": Policy(SMALL_PPO, SMALL)})) as parts:
        assert set(parts.learners) == {"prey"}
        assert parts.replays == {}
        assert {fragment.policy for fragment in collect(parts, 0).fragments} == {"prey"}


class Counted(cartpole_team.CartPoleTeam):
    """Knows how many of its kind are open."""

    open = 0

    def __init__(self) -> None:
        super().__init__(max_cycles=10)
        type(self).open += 1

    def close(self) -> None:
        type(self).open -= 1
        super().close()


def test_close_closes_every_environment_and_gives_the_threads_back() -> None:
    threads = torch.get_num_threads()
    Counted.open = 0
    spec = small_spec(env=Env(Counted, num_envs=4))
    runtime = InlineRuntime()
    parts = runtime.start(spec)
    collect(parts, 0)
    begun(parts.workers.evaluate(EvaluationRequest(range(3), {})))
    assert Counted.open == 7
    runtime.close()
    assert Counted.open == 0
    runtime.close()
    assert torch.get_num_threads() == threads


def test_the_learners_state_is_what_it_learned() -> None:
    runtime = InlineRuntime()
    parts = runtime.start(small_spec())
    state = from_bytes(runtime.save({}).files["learner.hunters"])
    acting = parts.published()["hunters"].flat
    np.testing.assert_array_equal(state["vector"][: len(acting)], acting)
    runtime.close()


# -- the place ------------------------------------------------------------------------------------------------------


def batch_of(rows: int) -> Batch:
    return Batch({"reward": np.arange(rows, dtype=np.float64)}, {"length": np.array([rows])})


def test_packed_rows_are_opened_on_the_way_in_and_packed_on_the_way_out() -> None:
    seen: list[Any] = []

    def keeps(batch: Batch) -> Batch:
        seen.append(batch)
        return batch

    call = InlinePlace("learner prey").prepare([stage_call(keeps)])
    outcome = call([Packed(5, (batch_of(2), batch_of(3))), "light"])
    assert [getattr(item, "rows", item) for item in seen] == [5, "light"]
    packed, light = outcome.outputs
    assert isinstance(packed, Packed)
    assert packed.rows == 5
    assert packed.payloads[0].columns["reward"].tolist() == [0, 1, 0, 1, 2]
    assert light == "light"
    assert outcome.times[0].rows == 5


def test_an_operator_that_raises_is_named_by_position() -> None:
    call = InlinePlace("learner prey").prepare([stage_call(abs), stage_call(lambda number: 1 // number)])
    with pytest.raises(OperatorRaised) as caught:
        call([0])
    assert caught.value.position == 1
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
