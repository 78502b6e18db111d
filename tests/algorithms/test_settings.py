"""The effects of algorithms' settings, in tables: plans as in their papers, where they act, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gym

import marlflow as mf
from marlflow.base.spaces import Spaces
from marlflow.policy.actor import RecurrentActor, WeightedActor
from tests.algorithms.parts import CONTINUOUS, DISCRETE, MASKED, SMALL, make_learner, make_plan
from tests.sentences import sentences

BOX = Spaces(gym.Box(-1.0, 1.0, (2,), np.float32), gym.Box(-2.0, 2.0, (2,), np.float32))
GRU, LSTM = mf.GRU(5, (4,)), mf.LSTM(hidden_size=3, encoder_sizes=(4,))
STORING: dict[str, Any] = {"train_every_agent_steps": 4, "learning_starts_agent_steps": 50, "batch_agent_steps": 32}
CUT: dict[str, Any] = {"batch_agent_steps": 500, "epochs": 4, "minibatch_agent_steps": 50}
SEQUENCES = mf.R2D2(
    sequence_agent_steps=4,
    burn_in_agent_steps=3,
    batch_agent_steps=24,
    train_every_agent_steps=64,
    learning_starts_agent_steps=20,
    n_step=2,
    discount=0.8,
)


def stored(name: str, n_step: str, draw: int, sync: str, after: str = "", every: int = 4, first: int = 50) -> str:
    """Return the plan of an algorithm with a replay."""
    return (
        f"{name}   in turn: output 1 for every {every} agent steps of store, after the first {first}\n"
        "├── store:  experience → Concat(agent_steps=1)\n"
        f"│   → [{n_step} → Insert] at learner hunter\n"
        f"└── output: [Draw(agent_steps={draw}) → Learn(epochs=1) → SyncTarget({sync}) → Publish(every=10)"
        f"{after}] at learner hunter"
    )


def fresh(name: str, batch: str, stages: str) -> str:
    """Return the plan of an algorithm that learns from its rows once."""
    return f"{name}\n└── experience → {batch}\n    → [{stages} → Publish(every=1)] at learner hunter"


ESTIMATED = "DropStale(max_staleness=0) → Advantages(discount=0.99, gae_lambda=0.95)"
BATCH = "Concat(agent_steps=500)"
ONE_STEP, SOFT = "NStep(n_step=1, discount=0.99)", "every=1, tau=0.005"
MULTIPLIED = "UpdateMultiplier(cost_limit=0.5, learning_rate=0.05)"
PLANS: list[tuple[mf.Algorithm, str]] = [
    (mf.PPO(**CUT), fresh("ppo", BATCH, f"{ESTIMATED} → Normalize → Learn(epochs=4, minibatch=50)")),
    (
        mf.PPO(**CUT, parts={"cost": mf.CostLimit(0.5)}),
        fresh(
            "ppo",
            BATCH,
            f"{ESTIMATED} → {MULTIPLIED} → CostAdvantages(discount=0.99, gae_lambda=0.95) → Normalize"
            " → Learn(epochs=4, minibatch=50)",
        ),
    ),
    (mf.A2C(batch_agent_steps=500, gae_lambda=0.95), fresh("a2c", BATCH, f"{ESTIMATED} → Learn(epochs=1)")),
    (
        mf.RecurrentPPO(**CUT, sequence_agent_steps=8),
        fresh(
            "recurrent_ppo", BATCH, f"{ESTIMATED} → Normalize → CutSequences(length=8) → Learn(epochs=4, minibatch=50)"
        ),
    ),
    (
        mf.IMPALA(queue_fragments=6, trace_lambda=0.9, c_max=0.5),
        fresh(
            "impala",
            "newest(6, drop_oldest) → Concat(agent_steps=500)",
            "VTrace(discount=0.99, trace_lambda=0.9, rho_max=1.0, c_max=0.5) → Learn(epochs=1)",
        ),
    ),
    (
        mf.MAML(inner_steps=2, epochs=3, minibatch_tasks=8),
        fresh(
            "maml",
            "Concat(agent_steps=1)",
            "DropStale(max_staleness=0) → Adapt(discount=0.99, gae_lambda=0.97) → ByTask(inner_steps=2)"
            " → MetaLearn(epochs=3, minibatch_tasks=8)",
        ),
    ),
    (mf.SAC(**STORING), stored("sac", ONE_STEP, 32, SOFT)),
    (mf.DDPG(**STORING), stored("ddpg", ONE_STEP, 32, SOFT)),
    (mf.TD3(**STORING), stored("td3", ONE_STEP, 32, "every=2, tau=0.005")),
    (
        mf.DQN(**STORING, target_every_updates=200, publish_every_updates=10),
        stored("dqn", "NStep(n_step=3, discount=0.99)", 32, "every=200, tau=1.0", " → Reprioritize"),
    ),
    (
        SEQUENCES,
        stored(
            "r2d2",
            "SplitSegments(length=4, burn_in=3) → NStep(n_step=2, discount=0.8)",
            24,
            "every=200, tau=1.0",
            " → Reprioritize",
            every=64,
            first=20,
        ),
    ),
]


def models_of(algorithm: mf.Algorithm) -> list[Any]:
    """Return small models that the algorithm learns with."""
    return [GRU, LSTM] if isinstance(algorithm, mf.RecurrentPPO | mf.R2D2) else [SMALL]


def acts_in(algorithm: mf.Algorithm) -> Spaces:
    return DISCRETE if "Discrete" in algorithm.capabilities.actions else CONTINUOUS


@pytest.mark.parametrize(("algorithm", "text"), PLANS, ids=[text.split()[0] for _, text in PLANS])
def test_the_plan_reads_as_its_paper(algorithm: mf.Algorithm, text: str) -> None:
    assert str(make_plan(algorithm, spaces=acts_in(algorithm), model=models_of(algorithm)[0])) == text


PARTS: list[tuple[mf.Algorithm, list[str]]] = [
    (mf.A2C(microbatches=3), ["→ ComputeGradients]", "→ Average(batches=3) → [ApplyGradients → Publish(every=1)]"]),
    (mf.SAC(parts={"cost": mf.CostLimit(0.5)}), [f"[Draw(agent_steps=256) → {MULTIPLIED} → Learn(epochs=1) →"]),
    (mf.APPO(**CUT), ["newest(4, drop_oldest) → Concat", "→ Normalize → Learn(epochs=4, minibatch=50)"]),
    (mf.BC(), ["Concat(agent_steps=4000)\n    → [Learn(epochs=1, minibatch=128) → Publish(every=1)]"]),
    (mf.MARWIL(), ["→ [Advantages(discount=0.99, gae_lambda=1.0) → Learn(epochs=1, minibatch=128) → Publish"]),
]


@pytest.mark.parametrize(("algorithm", "parts"), PARTS, ids=[one.name for one, _ in PARTS])
def test_the_plan_has_these_stages(algorithm: mf.Algorithm, parts: list[str]) -> None:
    text = str(make_plan(algorithm))
    assert [part for part in parts if part not in text] == []


def test_rounds_wait_for_those_whose_rows_must_be_fresh() -> None:
    learning = [*(algorithm for algorithm, _ in PLANS), mf.APPO()]
    plans = {one.name: make_plan(one, spaces=acts_in(one), model=models_of(one)[0]) for one in learning}
    waited_for = {name for name, plan in plans.items() if plan.waits_for_rounds}
    assert waited_for == {"ppo", "a2c", "recurrent_ppo", "maml"}
    for late in (mf.IMPALA(), mf.APPO()):
        assert all(stage.traits.max_staleness is None for stage in make_plan(late).stages())
        assert late.capabilities.experience == "off-policy"


ALL = (DISCRETE, MASKED, CONTINUOUS)
ACTING: list[tuple[mf.Algorithm, tuple[Spaces, ...]]] = [
    (mf.PPO(), ALL),
    (mf.A2C(), ALL),
    (mf.IMPALA(), ALL),
    (mf.APPO(), ALL),
    (mf.RecurrentPPO(), ALL),
    (mf.SAC(), (*ALL, BOX)),
    (mf.DQN(), (DISCRETE, MASKED)),
    (mf.DQN(dueling=True), (DISCRETE, MASKED)),
    (mf.DQN(dueling=True, atoms=5), (DISCRETE, MASKED)),
    (mf.ApeX(), (DISCRETE, MASKED)),
    (mf.R2D2(), (DISCRETE, MASKED)),
    (mf.MAML(), (DISCRETE, MASKED)),
    (mf.DDPG(), (BOX,)),
    (mf.TD3(), (BOX,)),
]


@pytest.mark.parametrize(("algorithm", "places"), ACTING, ids=[algorithm.name for algorithm, _ in ACTING])
def test_its_actor_takes_what_its_learner_publishes(algorithm: mf.Algorithm, places: tuple[Spaces, ...]) -> None:
    assert isinstance(algorithm, mf.Algorithm)
    for spaces in places:
        for model in models_of(algorithm):
            assert sentences(algorithm.validate(spaces, model)) == []
            learner, actor = make_learner(algorithm, spaces, 1, model), algorithm.actor(spaces, model, 2)
            assert isinstance(actor, WeightedActor)
            actor.load_flat(learner.published[learner.name].flat)
            np.testing.assert_array_equal(actor.flat(), learner.published[learner.name].flat)
            if model is not SMALL:
                assert isinstance(actor, RecurrentActor)
                assert actor.memory_shape == model.memory_shape


def acting(action: gym.Space[Any]) -> Spaces:
    return Spaces(DISCRETE.observation, action)


TEXT, WHOLE, MULTI = acting(gym.Text(3)), acting(gym.Box(0, 3, (2,), np.int64)), acting(gym.MultiBinary(2))
UNBOUNDED = acting(gym.Box(-np.inf, 1.0, (2,)))
KINDS = "Discrete, MultiDiscrete, MultiBinary or Box actions"
FEW_BATCHES = "cannot cut batches of 64 agent steps into minibatches of 65; lower minibatch_agent_steps"
TOO_FEW: dict[str, Any] = {"batch_agent_steps": 64, "minibatch_agent_steps": 65}
LATE: dict[str, Any] = {"learning_starts_agent_steps": 11, "replay_agent_steps": 10}
SMALL_REPLAY = "would start learning after 11 agent steps, but its replay holds 10; raise replay_agent_steps"
NO_MEMORY = (
    "cannot learn with GRU, which has memory: it does not look at rows in their order; use recurrent_ppo, r2d2, vdn or "
    "qmix, or a model without memory, such as mlp"
)
UNBOUND = (mf.SAC, mf.TD3)
REFUSED: list[tuple[mf.Algorithm, Spaces, Any, str]] = [
    (mf.PPO(), TEXT, SMALL, f"cannot act in {TEXT.action}; it needs {KINDS}"),
    (mf.PPO(), WHOLE, SMALL, f"cannot act in Box(2,); it needs {KINDS}, and a Box of floats, not of int64"),
    *((one(), TEXT, SMALL, f"cannot act in {TEXT.action}; it needs") for one in (mf.A2C, mf.IMPALA, mf.APPO)),
    *((one(**TOO_FEW), DISCRETE, SMALL, FEW_BATCHES) for one in (mf.PPO, mf.APPO, mf.BC, mf.MARWIL)),
    *((one(), DISCRETE, mf.GRU(), NO_MEMORY) for one in (mf.PPO, mf.DQN)),
    (
        mf.RecurrentPPO(), DISCRETE, mf.MLP(),
        "needs a model with memory, gru or lstm, not MLP; or use ppo or dqn, which need none",
    ),
    (
        mf.RecurrentPPO(sequence_agent_steps=300), DISCRETE, GRU,
        "needs sequence_agent_steps of at most minibatch_agent_steps, not 300 and 256",
    ),
    (
        mf.RecurrentPPO(minibatch_agent_steps=5_000), DISCRETE, GRU,
        "cannot cut batches of 4000 agent steps into minibatches of 5000; lower minibatch_agent_steps",
    ),
    (mf.MAML(), CONTINUOUS, SMALL, "cannot act in Box(2,); it needs Discrete actions"),
    (
        mf.MAML(), acting(gym.MultiDiscrete([2, 3])), SMALL,
        "cannot act in MultiDiscrete([2 3]); it needs Discrete actions",
    ),
    (mf.DQN(), CONTINUOUS, SMALL, "cannot act in Box(2,); it needs Discrete actions"),
    (mf.DQN(), MULTI, SMALL, "cannot act in MultiBinary(2); it needs Discrete actions"),
    (mf.DQN(**LATE), DISCRETE, SMALL, SMALL_REPLAY),
    (
        mf.DQN(atoms=5, value_min=1.0, value_max=1.0), DISCRETE, SMALL,
        "needs value_min below value_max, not 1.0 and 1.0",
    ),
    (mf.R2D2(), CONTINUOUS, GRU, "cannot act in Box(2,); it needs Discrete actions"),
    (mf.R2D2(), DISCRETE, SMALL, "needs a model with memory, gru or lstm, not MLP"),
    (
        mf.R2D2(n_step=21, burn_in_agent_steps=0), DISCRETE, GRU,
        "needs n_step=21 of at most sequence_agent_steps=20",
    ),
    (
        mf.R2D2(batch_agent_steps=19), DISCRETE, GRU,
        "needs batch_agent_steps=19 of at least one sequence, sequence_agent_steps=20",
    ),
    (
        mf.R2D2(replay_agent_steps=999), DISCRETE, GRU,
        "needs learning_starts_agent_steps=2000 of at most replay_agent_steps=999, what its replay holds",
    ),
    (mf.SAC(), MULTI, SMALL, "cannot act in MultiBinary(2); it needs Discrete or Box actions"),
    (mf.SAC(**LATE), DISCRETE, SMALL, SMALL_REPLAY),
    (mf.TD3(**LATE), BOX, SMALL, SMALL_REPLAY),
    *((one(), DISCRETE, SMALL, "cannot act in Discrete(3); it needs Box actions") for one in (mf.DDPG, mf.TD3)),
    *((one(), UNBOUNDED, SMALL, "cannot act in Box(2,): it needs actions with finite bounds") for one in UNBOUND),
]  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "spaces", "model", "problem"),
    REFUSED,
    ids=[f"{one.name}: {said[:30]}" for one, _, _, said in REFUSED],
)
def test_what_it_refuses(algorithm: mf.Algorithm, spaces: Spaces, model: Any, problem: str) -> None:
    (found,) = sentences(algorithm.validate(spaces, model))
    assert found.startswith(f"{algorithm.name} {problem}")
    assert found == f"{algorithm.name} {problem}" or problem.endswith(("it needs", "bounds", "MLP"))


def test_a_distribution_needs_no_bounds_of_values_without_atoms() -> None:
    assert sentences(mf.DQN(value_min=1.0, value_max=0.0).validate(DISCRETE, mf.MLP())) == []
