"""Rollouts in compiled calls give the rows, receipts and faults of the same worker tick by tick."""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from gymnasium import spaces

import marlflow as mf
from marlflow.base.errors import ConfigInvalid
from marlflow.base.random import RowRandom
from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.base.spaces import Spaces
from marlflow.batches.items import Weights
from marlflow.compiled.counter_random import CounterRandom, bits64, mix, uint64
from marlflow.env.functional.own import batched_env
from marlflow.policy.actor_critic import stochastic_head
from marlflow.policy.box import DeterministicActor, SquashedGaussianActor
from marlflow.policy.compiled_actor import compiled_choice
from marlflow.policy.q import QActor, QNetwork
from marlflow.policy.recurrent import recurrent_stochastic_actor
from marlflow.policy.scripted import CallableActor, RandomActor
from marlflow.policy.torso import build_torso
from marlflow.policy.warmup import WarmupActor
from marlflow.sampling import RolloutWorker, SamplerConfig
from marlflow.sampling.compiled import program
from marlflow.sampling.protocol import EvaluationRequest, FrozenPolicy, Request
from marlflow.sampling.receipts import CompiledCalls
from marlflow.sampling.saved_state import ResumeReport
from tests.env.functional_games import MOST_STEPS, MOST_TURNS, HotPotato, Walkers
from tests.runtime.small_runs import SMALL, SMALL_PPO, small_run
from tests.sampling.workers import every_column_of_costs, rollout_worker

NO_TIMES = {"env_s": 0.0, "policy_s": 0.0, "bookkeeping_s": 0.0, "began_s": 0.0, "compiled": CompiledCalls()}
TICKS = (40, 1, 7, 3, 33)
MODEL = mf.MLP((16, 16))


def actor_of(kind, env, agent, masked):
    of = Spaces(env.observation_space(agent), env.action_space(agent), masked)
    generator = torch.Generator().manual_seed(7)
    if kind == "random":
        return RandomActor(of.action)
    if kind == "ppo":
        actor = stochastic_head(of, *build_torso(of, MODEL, generator), generator)
    elif kind == "gru":
        actor = recurrent_stochastic_actor(of, mf.GRU(8), generator)
    else:
        actor = QNetwork(of, MODEL, False, 3).actor
        actor.set_schedule({"epsilon": 0.3})
    with torch.no_grad():
        for parameter in actor.parameters():
            # As they are first, all actions are nearly as likely.
            parameter.mul_(3.0)
    return actor


@dataclass(frozen=True)
class Case:
    make: object
    limit: int
    mapping: dict
    kinds: dict
    settings: dict = field(default_factory=dict)

    def worker(self, compiled, env_indices=range(5), actors=None):
        env = self.make()
        first = {policy: agent for agent, policy in reversed(self.mapping.items())}
        masks = isinstance(env, Walkers)
        made = {policy: actor_of(self.kinds[policy], env, agent, masks) for policy, agent in first.items()}
        return rollout_worker(
            partial(batched_env, 1, self.make, max_env_steps=self.limit),
            list(env_indices),
            self.mapping,
            actors or made,
            seed=3,
            make_batched=partial(batched_env, make=self.make, max_env_steps=self.limit),
            compiled=compiled,
            **self.settings,
        )


CASES = {
    "walkers, PPO and DQN, with masks, costs and state": Case(
        Walkers,
        MOST_STEPS,
        {"walker_0": "a", "walker_1": "b", "walker_2": "a", "caller_0": "c"},
        {"a": "ppo", "b": "dqn", "c": "ppo"},
        {"columns": every_column_of_costs("a", "c"), "with_state": ("c",)},
    ),
    "players in turn, with a memory": Case(
        HotPotato, MOST_TURNS, {"player_0": "a", "player_1": "b", "player_2": "a"}, {"a": "gru", "b": "dqn"}
    ),
    "walkers with a memory, of which one policy is not recorded": Case(
        Walkers,
        MOST_STEPS,
        {"walker_0": "a", "walker_1": "a", "walker_2": "a", "caller_0": "c"},
        {"a": "gru", "c": "random"},
        {"recorded": ("a",)},
    ),
    "players in turn of one policy": Case(
        HotPotato, MOST_TURNS, {f"player_{number}": "a" for number in range(3)}, {"a": "ppo"}
    ),
}
QUICK = [
    pytest.param(name, marks=[] if number < 2 else [pytest.mark.slow], id=name) for number, name in enumerate(CASES)
]


def collected(worker, numbers):
    flat = {name: actor.flat() for name, actor in worker._actors.items() if hasattr(actor, "flat")}
    weights = [{name: Weights(number, vector) for name, vector in flat.items()} for number in numbers]
    return [worker.collect(TICKS[n % len(TICKS)], Request(weights=w)) for n, w in zip(numbers, weights, strict=True)]


def assert_alike(ours, theirs):
    """Equal numbers, except the rounding of networks' outputs."""
    assert replace(ours[0], **NO_TIMES) == replace(theirs[0], **NO_TIMES)
    for policy, rows in theirs[1].items():
        for part in ("columns", "segments"):
            expected, found = dict(getattr(rows, part)), dict(getattr(ours[1][policy], part))
            assert found.keys() == expected.keys()
            for name, column in expected.items():
                assert found[name].dtype == column.dtype
                exact = name not in {"behavior_logp", "memory", "bootstrap_memory"}
                np.testing.assert_allclose(found[name], column, 0, 0 if exact else 1e-5, err_msg=f"{policy} {name}")


@pytest.mark.parametrize("name", QUICK)
def test_rows_and_receipts_are_those_of_single_ticks_also_after_a_resume(name):
    case = CASES[name]
    ticked, compiled = case.worker(False), case.worker(True)
    episodes = []
    for ours, theirs in zip(collected(compiled, range(5)), collected(ticked, range(5)), strict=True):
        assert_alike(ours, theirs)
        episodes += ours[0].episodes
    assert len(episodes) > 10
    assert {episode.truncated for episode in episodes} == {False, True}
    # The worker that saved, and the worker that resumes.
    for saved, by in ((compiled, False), (ticked, True)):
        resumed = case.worker(by)
        assert resumed.load_state(from_bytes(to_bytes(saved.state())), 0) == ResumeReport()
        assert_alike(collected(resumed, [7])[0], collected(saved, [7])[0])


class Sinking(Walkers):
    """A walker at 2 gets a NaN."""

    def step(self, key, state, actions):
        state, step = super().step(key, state, actions)
        rewards = jnp.where(state["place"] == 2, jnp.nan, step.rewards["walker"])
        return state, step._replace(rewards={**step.rewards, "walker": rewards})


def test_what_breaks_is_found_and_nothing_else_is_lost():
    case = replace(CASES["walkers with a memory, of which one policy is not recorded"], make=Sinking)
    case = replace(case, kinds={"a": "ppo", "c": "ppo"}, settings={"tolerated_faults": 10**6})
    ticked, compiled = case.worker(False, [2]), case.worker(True, [2])
    # One environment: a call ends where it breaks, while single ticks continue.
    ours, theirs = ([], [])
    for worker, found in ((ticked, theirs), (compiled, ours)):
        while len(found) < 12:
            receipt = worker.collect(6, Request())[0]
            found += [(fault.where, fault.reason, fault.rows_lost) for fault in receipt.faults]
    assert all("the reward is nan, not a finite number" in reason for _, reason, _ in ours)
    assert [where for where, *_ in ours[:8]] == [where for where, *_ in theirs[:8]]


class Blinding(Walkers):
    """A walker at 2 sees NaN."""

    def see(self, state):
        seen = super().see(state)
        return {**seen, "walker": jnp.where(seen["walker"] == 2, jnp.nan, seen["walker"])}


def test_a_nan_that_only_a_policy_without_rows_sees_is_a_fault_of_the_environment():
    case = replace(CASES["walkers with a memory, of which one policy is not recorded"], make=Blinding)
    case = replace(case, kinds={"a": "ppo", "c": "ppo"}, settings={"tolerated_faults": 10**6, "recorded": ("c",)})
    worker = case.worker(True)
    faults = [fault for _ in range(3) for fault in worker.collect(6, Request())[0].faults]
    found = {fault.reason.partition(" at ")[0].partition(",")[0] for fault in faults}
    # The latter of an episode's first observation, if the episode begins between two calls.
    assert "the observation is not finite" in found
    assert found <= {"the observation is not finite", "the observation has a NaN"}


def test_a_call_returns_early_when_the_room_for_ends_is_full(monkeypatch):
    case = CASES["players in turn of one policy"]
    ticked = collected(case.worker(False), range(3))
    monkeypatch.setattr(program, "_TICKS_PER_END", 10**6)
    for ours, theirs in zip(collected(case.worker(True), range(3)), ticked, strict=True):
        assert_alike(ours, theirs)


class AsksForNumbers(torch.nn.Module):
    def forward(self, obs):
        return torch.zeros(len(obs), 16) + (1.0 if obs.sum().item() > 0 else 2.0)


def test_what_cannot_be_compiled_is_refused_or_said(tmp_path):
    class Own(QActor):
        def choose(self, outputs, action_mask, mode, generator):
            return super().choose(outputs, action_mask, mode, generator)

    case = CASES["players in turn of one policy"]
    plain = actor_of("dqn", HotPotato(), "player_0", False)
    own = {"a": Own(plain.torso, plain.head)}
    with pytest.raises(ConfigInvalid, match=r"Own chooses its actions in Python, .*set rollouts.compiled=auto"):
        case.worker(True, actors=own)
    receipts = [receipt for receipt, _ in collected(case.worker("auto", actors=own), range(2))]
    notes = [receipt.compiled.note for receipt in receipts]
    assert notes[0].startswith("rollouts are not compiled: ")
    assert notes[1] == ""
    plain.torso = AsksForNumbers()
    unusual = {"a": QActor(plain.torso, plain.head)}
    with pytest.raises(ConfigInvalid, match=r"item\(\) asks for a tensor's numbers.*set rollouts.compiled=auto"):
        case.worker(True, actors=unusual)
    ((receipt, rows), _) = collected(case.worker("auto", actors=unusual), range(2))
    assert "item() asks for a tensor's numbers" in receipt.compiled.note
    assert rows["a"].rows
    with pytest.raises(ConfigInvalid, match="a compiled call there are no single steps to time"):
        mf.train(
            small_run(
                env=mf.Env("functional", {"make": HotPotato, "max_env_steps": 9}, num_envs=2, step_timeout_s=9.0),
                policies={"player": mf.Policy(SMALL_PPO, SMALL)},
                mapping=None,
                rollouts=mf.Rollouts(1, compiled=True),
            ),
            tmp_path,
        )


KEYS = np.random.default_rng(0).integers(0, 2**64, 3_000, np.uint64)


def test_random_numbers_are_numpys_but_for_the_last_bits():
    counters = np.arange(len(KEYS))
    ours, theirs = CounterRandom(bits64(KEYS), counters, counters), RowRandom(KEYS, counters)
    np.testing.assert_array_equal(uint64(mix(bits64(KEYS))), RowRandom(KEYS * 0, KEYS)._base * 0 + _mixed(KEYS))
    for _ in range(3):
        difference = theirs.uniform() - np.asarray(ours.uniform(), np.float64)
        assert (difference >= 0).all()
        assert (difference < 2.0**-24).all()
    np.testing.assert_allclose(ours.normal(), theirs.normal(), atol=2e-5)


def _mixed(numbers):
    from marlflow.base import random

    return random.mix(numbers)


@cache
def _box():
    return spaces.Box(np.array([-1, 0], np.float32), np.array([2, 3], np.float32))


def choosing(kind):
    generator = torch.Generator().manual_seed(1)
    body = torch.nn.Linear(3, 4)
    if kind == "warm-up":
        made = WarmupActor(SquashedGaussianActor(body, 4, _box(), generator), _box())
        made.set_schedule({"acts_uniformly": 1.0})
        return made, 4
    if kind == "ladder":
        made = QActor(body, torch.nn.Linear(4, 6))
        made.ladder = 7.0
        made.set_schedule({"epsilon": 0.4, "num_envs": 8.0})
        return made, 6
    action = {
        "Discrete": spaces.Discrete(6),
        "MultiDiscrete": spaces.MultiDiscrete([3, 2, 4]),
        "Box": _box(),
        "noise": _box(),
        "squashed": _box(),
    }[kind]
    if kind == "noise":
        return DeterministicActor(body, 4, _box(), generator), 2
    if kind == "squashed":
        return SquashedGaussianActor(body, 4, _box(), generator), 4
    of = Spaces(spaces.Box(0, 1, (3,)), action)
    return stochastic_head(of, body, 4, generator), {"Discrete": 6, "MultiDiscrete": 9, "Box": 4}[kind]


@pytest.mark.parametrize("kind", ["Discrete", "MultiDiscrete", "Box", "noise", "squashed", "warm-up", "ladder"])
def test_choices_are_those_of_the_actors(kind):
    actor, width = choosing(kind)
    random = np.random.default_rng(2)
    outputs = random.normal(size=(len(KEYS), width)).astype(np.float32) * 2
    mask = None
    if kind in {"Discrete", "MultiDiscrete", "ladder"}:
        mask = random.random((len(KEYS), width)) < 0.7
        mask[:, [0, 3, 5]] = True
    env_indices = np.arange(len(KEYS)) % 8
    counters = np.arange(len(KEYS)) % 50
    action, logp = actor.choose(torch.from_numpy(outputs), mask, "explore", RowRandom(KEYS, counters, env_indices))
    choice = compiled_choice(actor)
    ours = jax.jit(
        lambda outputs: choice.choose(
            outputs, mask, CounterRandom(bits64(KEYS), counters, jnp.asarray(env_indices)), choice.settings
        )
    )(outputs)
    # A sample next to a threshold may fall on its other side.
    same = np.isclose(ours.action, action, atol=1e-4).reshape(len(KEYS), -1).all(1)
    assert same.sum() >= len(KEYS) - 2
    np.testing.assert_allclose(np.asarray(ours.logp)[same], logp[same], rtol=2e-3, atol=2e-3)
    assert np.asarray(ours.is_sound).all()


def first_action(obs, action_mask, generator):
    return np.zeros(len(obs), np.int64)


def league_worker(compiled, evaluation_only=("scripted",)):
    env = HotPotato()
    of = Spaces(env.observation_space("player_0"), env.action_space("player_0"))
    actors = {name: actor_of(kind, env, "player_0", False) for name, kind in (("p", "ppo"), ("q", "dqn"))}
    # A function has no counterpart in XLA.
    actors["scripted"] = CallableActor(first_action)
    config = SamplerConfig(
        partial(batched_env, 1, HotPotato, max_env_steps=MOST_TURNS),
        list(range(5)),
        None,
        seed=3,
        make_batched=partial(batched_env, make=HotPotato, max_env_steps=MOST_TURNS),
        compiled=compiled,
        recorded=("p", "q"),
        spaces={"p": of, "q": of, "scripted": of},
        evaluation_only=evaluation_only,
    )
    # Frozen versions have actors of their own.
    return RolloutWorker(config, {name: partial(deepcopy, actor) for name, actor in actors.items()})


def dealt(worker, rounds):
    """Rounds with random matchups of policies and frozen versions; in the third, too few for all ticks."""
    random, frozen = np.random.default_rng(1), {}
    for number in range(rounds):
        flat = {name: worker._actors[name].flat() for name in ("p", "q")}
        if number < 4:
            for name, vector in flat.items():
                weights = Weights(number, (vector * (0.5 + 0.3 * number)).astype(np.float32))
                scheduled = {"epsilon": 0.1 * number + 0.05} if name == "q" else {}
                frozen[f"{name}@{number}"] = FrozenPolicy(name, weights, scheduled)
        entries = ["p", "q", *frozen]
        matchups = {
            env: [
                {f"player_{seat}": str(random.choice(entries)) for seat in range(3)}
                for _ in range(1 + 7 * (number != 2))
            ]
            for env in range(5)
        }
        request = Request(
            weights={name: Weights(number, vector) for name, vector in flat.items()},
            schedules={"q": {"epsilon": 0.2}},
            matchups=matchups,
            frozen=dict(frozen),
        )
        yield worker.collect(TICKS[number], request)


def test_a_league_is_dealt_as_in_single_ticks():
    compiled, ticked = (list(dealt(league_worker(by), 5)) for by in (True, False))
    for ours, theirs in zip(compiled, ticked, strict=True):
        assert_alike(ours, theirs)
    seated = {entry for receipt, _ in compiled for episode in receipt.episodes for entry in episode.matchup.values()}
    assert len(seated) > 8
    # The programs of the first fragment, and of eight frozen versions instead of four.
    assert sum(receipt.compiled.compiles for receipt, _ in compiled) <= 3


def test_only_opponents_in_evaluation_may_act_in_python():
    with pytest.raises(ConfigInvalid, match="CallableActor chooses its actions in Python"):
        league_worker(True, evaluation_only=())
    worker = league_worker(True)
    list(dealt(worker, 1))
    seats = {"player_0": "scripted", "player_1": "p", "player_2": "q"}
    (episode,) = worker.evaluate(EvaluationRequest([0], {}, [seats])).episodes
    assert episode.matchup == seats


@pytest.mark.parametrize(
    ("compiled", "timeout_s", "shown"), [("auto", None, True), (False, None, False), ("auto", 9.0, False)]
)
def test_the_drawn_plan_says_whether_rollouts_are_compiled(compiled, timeout_s, shown):
    env = mf.Env("functional", {"make": Walkers}, num_envs=4, step_timeout_s=timeout_s)
    run = small_run(env=env, policies={"walker": mf.Policy(SMALL_PPO, SMALL)}, mapping=None)
    drawn = str(mf.plan(replace(run, rollouts=replace(run.rollouts, compiled=compiled))))
    assert ("Collect(compiled=True)" in drawn) is shown


class Pushed(QActor):
    """Adds a scheduled number to the value of its first action."""

    def __init__(self, torso, head):
        super().__init__(torso, head)
        self.push = 7.0

    def forward(self, obs):
        q = super().forward(obs)
        return q + self.push * torch.eye(q.shape[1])[0]

    def set_schedule(self, values):
        super().set_schedule(values)
        self.push = values.get("push", self.push)


def test_a_network_that_changes_a_number_of_its_own_goes_on_in_single_steps():
    case = CASES["players in turn of one policy"]

    def worker(compiled):
        plain = actor_of("dqn", HotPotato(), "player_0", False)
        return case.worker(compiled, actors={"a": Pushed(plain.torso, plain.head)})

    single, compiled = worker(False), worker("auto")
    notes = []
    for number, push in enumerate((0.0, 0.0, 50.0, 50.0, -50.0)):
        request = Request(schedules={"a": {"epsilon": 0.2, "push": push}})
        ours, theirs = (one.collect(TICKS[number], request) for one in (compiled, single))
        assert_alike(ours, theirs)
        notes.append(ours[0].compiled.note)
    assert notes[0].startswith("rollouts are compiled")
    assert notes[2].startswith("rollouts are not compiled any more: ")
    assert "Pushed changes its own push" in notes[2]
    assert (notes[1], notes[3], notes[4]) == ("", "", "")
