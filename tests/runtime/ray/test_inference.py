"""One actor acts for all workers, with the same actions, versions and episodes as without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import ray

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.batches.items import Weights
from marlflow.policy.actor import Acted, EvaluationMode, Mode, RecurrentActor, WeightedActor
from marlflow.runtime.inline import InlineRuntime
from marlflow.runtime.protocol import Runtime
from marlflow.runtime.ray import RayRuntime
from marlflow.runtime.ray.host import RemoteError
from marlflow.runtime.ray.inference import CACHED_VERSIONS, InferenceActor, InferenceKey, RemoteActor, remote_actors
from marlflow.runtime.ray.inference_members import ByReference, InferenceInput
from marlflow.runtime.spec import RunSpec
from marlflow.sampling.protocol import EvaluationRequest, Request, Round
from marlflow.sampling.receipts import Evaluated
from tests.runtime.small_runs import SMALL_PPO, policies, small_spec

ONE_FOR_ALL = mf.RunPlacement(inference=mf.InferencePlacement(num_cpus=0.5))


# -- among workers ----------------------------------------------------------------------------------------------------


class Play:
    """Rounds with given weights, which are others in each round."""

    def __init__(self, runtime: Runtime, spec: RunSpec) -> None:
        self.workers: Any = runtime.start(spec).workers
        self._flats = {name: one.learner().published[name].flat for name, one in spec.learners.items()}

    def _weights(self, version: int, factor: float) -> Mapping[str, Weights]:
        return {name: Weights(version, flat * np.float32(factor)) for name, flat in self._flats.items()}

    def round(self, number: int) -> Round:
        request = Request(number, self._weights(number, 1 + number / 10), {"prey": {"epsilon": 0.5 - number / 10}})
        made: Round = asyncio.run(self.workers.collect(request))
        return made

    def evaluate(self, version: int, mode: EvaluationMode) -> Mapping[int, tuple[int, Mapping[str, float]]]:
        """Env steps and returns of each evaluation episode."""
        made: Evaluated = asyncio.run(
            self.workers.evaluate(EvaluationRequest(range(3), self._weights(version, -1.0), mode=mode))
        )
        return {one.episode: (one.env_steps, one.returns) for one in made.episodes}


def _opened(made: Round) -> list[mf.Batch]:
    payloads = [payload for fragment in made.fragments for payload in fragment.payloads]
    return [ray.get(payload) if isinstance(payload, ray.ObjectRef) else payload for payload in payloads]


def _assert_same(alone: Round, asking: Round) -> None:
    assert [one.episodes for one in alone.receipts] == [one.episodes for one in asking.receipts]
    assert [one.policies for one in alone.receipts] == [one.policies for one in asking.receipts]
    assert {action for own in _opened(alone) for action in own.columns["action"].tolist()} == {0, 1}
    for own, asked in zip(_opened(alone), _opened(asking), strict=True):
        assert own.columns.keys() == asked.columns.keys()
        for name, column in own.columns.items():
            if name == "behavior_logp":  # in batches with other rows, the same sums are rounded differently
                np.testing.assert_allclose(asked.columns[name], column, rtol=1e-5, atol=1e-6)
            else:
                np.testing.assert_array_equal(asked.columns[name], column)


@pytest.mark.usefixtures("ray_session")
def test_the_actions_are_those_that_the_workers_own_actors_choose() -> None:
    """Also after an evaluation with other weights, and after the actor was started again."""
    spec = small_spec(placement=ONE_FOR_ALL)
    inline, over_ray = InlineRuntime(), RayRuntime()
    try:
        alone, asking = Play(inline, spec), Play(over_ray, spec)
        for number in range(2):
            _assert_same(alone.round(number), asking.round(number))
        evaluated = [[side.evaluate(99, mode) for mode in ("greedy", "sampled")] for side in (alone, asking)]
        assert evaluated[0] == evaluated[1]
        assert evaluated[0][0] != evaluated[0][1], "what is sampled was to differ"
        _assert_same(alone.round(2), asking.round(2))
        ray.kill(asking.workers._inference, no_restart=False)
        _assert_same(alone.round(3), asking.round(3))
        ray.kill(asking.workers._inference)
        with pytest.raises(mf.ActorLost, match="the inference actor does not answer"):
            asking.round(4)
    finally:
        inline.close()
        over_ray.close()


# -- in the actor -----------------------------------------------------------------------------------------------------


@dataclass
class Adder:
    """Chooses the sum of its weight, its bonus, what it sees, what it remembers and what it may do."""

    memory_shape: tuple[int, ...] = (1,)
    weight: float = np.nan
    bonus: float = 0.0
    calls: list[int] = field(default_factory=list)

    def act(self, obs: Array, action_mask: Array | None, memory: Any, mode: Mode, generator: mf.RowRandom) -> Acted:
        self.calls.append(len(obs))
        if np.isnan(obs).any():
            raise mf.MarlflowError("not a number")
        assert action_mask is not None
        noise = generator.uniform() if mode == "explore" else np.zeros(len(obs))
        action = self.weight + self.bonus + obs[:, 0] + memory[:, 0] + action_mask.sum(1) + noise
        return Acted(action, -action.astype(np.float32), memory + 1)

    def set_schedule(self, values: Mapping[str, float]) -> None:
        self.bonus = values.get("bonus", self.bonus)

    def flat(self) -> Array:
        return np.array([self.weight], np.float32)

    def load_flat(self, flat: Array) -> None:
        (self.weight,) = flat.tolist()


@dataclass
class Two:
    """A run of two workers and one policy."""

    actor: Adder = field(default_factory=Adder)
    num_workers: int = 2
    worker_members: int = 4
    inference: mf.InferencePlacement = field(default_factory=mf.InferencePlacement)
    publishing_critics: tuple[str, ...] = ()
    policies: tuple[str, ...] = ("all",)

    @property
    def actors(self) -> dict[str, Callable[[], Adder]]:
        return {"all": lambda: self.actor}


def _seen(rows: int, first: int) -> InferenceInput:
    numbers = np.arange(first, first + rows)
    generator = mf.RowRandom(numbers.astype(np.uint64), numbers)
    return InferenceInput(
        numbers[:, None] * 1.0, numbers[:, None] % 2 == [0, 1], numbers[:, None] * np.float32(0.5), generator
    )


def _answers(
    run: Two, asked: Sequence[tuple[InferenceKey, InferenceInput]], versions: Sequence[int] = (1, 2)
) -> list[Acted | RemoteError | None]:
    async def all_at_once() -> list[Any]:
        host = InferenceActor(run, threads=1)  # type: ignore[arg-type]
        for version in versions:
            await host.load("all", ByReference(version, [np.array([version * 100], np.float32)]))
        return await asyncio.gather(*[host.act(*one) for one in asked])

    return asyncio.run(all_at_once())


def _acting(version: int = 1, mode: Mode = "explore", bonus: float = 0.0) -> InferenceKey:
    return InferenceKey("all", version, mode, (("bonus", bonus),))


def test_what_two_workers_ask_is_one_batch_and_each_gets_its_own_rows() -> None:
    run = Two()
    answers = _answers(run, [(_acting(), _seen(3, 10)), (_acting(), _seen(2, 50))])
    assert run.actor.calls == [5]
    for answer, seen in zip(answers, (_seen(3, 10), _seen(2, 50)), strict=True):
        alone = Adder(weight=100.0).act(*seen[:3], "explore", seen.generator)
        assert isinstance(answer, Acted)
        for found, expected in zip(answer, alone, strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "other", [_acting(version=2), _acting(mode="greedy"), _acting(mode="sampled"), _acting(bonus=7.0)]
)
def test_rows_that_are_to_be_acted_on_differently_are_not_mixed(other: InferenceKey) -> None:
    run = Two()
    first, second = _answers(run, [(other, _seen(3, 10)), (_acting(), _seen(2, 10))])
    assert run.actor.calls == [3, 2]
    assert isinstance(first, Acted)
    assert isinstance(second, Acted)
    seen = _seen(2, 10)
    np.testing.assert_array_equal(second.action, Adder(weight=100.0).act(*seen[:3], "explore", seen.generator).action)
    assert not np.array_equal(first.action[:2], second.action)


def test_a_worker_is_answered_though_the_other_asks_nothing() -> None:
    run = Two()
    (answer,) = _answers(run, [(_acting(), _seen(3, 10))])
    assert isinstance(answer, Acted)
    assert run.actor.calls == [3]


def test_what_the_actor_raises_is_carried_to_all_that_asked() -> None:
    broken = _seen(1, 0)._replace(obs=np.full((1, 1), np.nan))
    answers = _answers(Two(), [(_acting(), _seen(3, 10)), (_acting(), broken)])
    assert [answer.text for answer in answers if isinstance(answer, RemoteError)] == ["MarlflowError: not a number"] * 2


def test_weights_that_are_not_at_hand_are_asked_for() -> None:
    assert _answers(Two(), [(_acting(version=7), _seen(1, 0))]) == [None]
    # Asked for again, an old version makes room among newer ones.
    versions = [*range(1, CACHED_VERSIONS + 3), 1]
    (there,) = _answers(Two(num_workers=1), [(_acting(version=1), _seen(1, 0))], versions)
    (gone,) = _answers(Two(num_workers=1), [(_acting(version=3), _seen(1, 0))], versions)
    assert isinstance(there, Acted)
    assert gone is None


def test_only_what_has_parameters_is_asked_for() -> None:
    makers = remote_actors(small_spec(policies=policies(hunters=SMALL_PPO, prey=mf.Random())), None)
    actors = {name: make() for name, make in makers.items()}
    assert type(actors["hunters"]) is RemoteActor
    assert isinstance(actors["hunters"], WeightedActor)
    assert not isinstance(actors["hunters"], RecurrentActor)
    assert not isinstance(actors["prey"], RemoteActor)
    (make,) = remote_actors(Two(), None).values()  # type: ignore[arg-type]
    remembering = make()
    assert isinstance(remembering, RecurrentActor)
    assert remembering.memory_shape == (1,)


def test_versions_of_many_workers_stay_while_their_calls_wait() -> None:
    run = Two(num_workers=40)

    async def all_at_once() -> list[Any]:
        host = InferenceActor(run, threads=1)  # type: ignore[arg-type]

        async def ask(version: int) -> Any:
            for _ in range(3):
                if (answer := await host.act(_acting(version), _seen(1, 0))) is not None:
                    return answer
                await host.load("all", ByReference(version, [np.array([version], np.float32)]))
                await asyncio.sleep(0)
            return None

        return await asyncio.gather(*map(ask, range(run.num_workers)))

    answers = asyncio.run(all_at_once())
    chosen = [answer.action.item() - answers[0].action.item() for answer in answers]
    np.testing.assert_allclose(chosen, range(run.num_workers), rtol=1e-6)
