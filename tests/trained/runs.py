"""Small runs of every kind, and their evaluation by a worker and by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pettingzoo import AECEnv

import marlflow as mf
from marlflow.base.awaiting import begun
from marlflow.base.serialization import from_bytes
from marlflow.batches.items import Weights
from marlflow.checks.validation import ready
from marlflow.flow import Executor, Plan, source
from marlflow.policy.actor import EvaluationMode
from marlflow.runs.saved_runs import newest
from marlflow.runtime.inline import InlineRuntime
from marlflow.sampling.protocol import EvaluationRequest
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, SMALL_R2D2, small_run
from tests.trained.watched import PLAYED

WATCHED = "tests.trained.watched.make"


def run(factory: str, arguments: dict[str, Any] | None = None, **changes: Any) -> mf.Experiment:
    wrappers = changes.pop("wrappers", ())
    env = mf.Env(WATCHED, {"factory": factory, **(arguments or {})}, wrappers, num_envs=4)
    return small_run(env=env, env_steps=320, **{"mapping": None, **changes})


CARTS = "marlflow.env.games.cartpole_team.parallel_env"
RECURRENT_PPO = mf.Policy(
    mf.RecurrentPPO(batch_agent_steps=200, epochs=1, sequence_agent_steps=4, minibatch_agent_steps=64), mf.LSTM(8, (8,))
)
QMIX = mf.QMIX(
    batch_agent_steps=16,
    train_every_agent_steps=20,
    learning_starts_agent_steps=60,
    replay_agent_steps=400,
    target_every_updates=5,
    publish_every_updates=2,
)
NORMALIZED = mf.MLP((16,), normalize_observations=True)
RUNS = {
    "ppo and dqn": replace(small_run(env_steps=400), env=run(CARTS, {"max_cycles": 50}).env),
    "memory": replace(
        small_run(env_steps=320),
        env=run(CARTS, {"max_cycles": 40}).env,
        policies={"hunters": RECURRENT_PPO, "prey": SMALL_R2D2},
    ),
    "masks in observations": run(
        "pettingzoo.classic.connect_four_v3.env",
        policies={"first": mf.Policy(SMALL_PPO, SMALL), "second": mf.Policy(SMALL_DQN, SMALL)},
        mapping=(mf.Rule("player_0", "first"), mf.Rule("player_1", "second")),
    ),
    "qmix and ppo": run(
        "mpe2.simple_tag_v3.parallel_env",
        {"max_cycles": 25},
        policies={"adversary": mf.Policy(QMIX, SMALL), "agent": mf.Policy(SMALL_PPO, SMALL)},
    ),
    "unusual spaces": run(
        "tests.trained.watched.Spread",
        policies={
            name: mf.Policy(SMALL_PPO, NORMALIZED if name != "arm" else SMALL) for name in ("number", "pair", "arm")
        },
    ),
}


def by_worker(experiment: mf.Experiment, run_dir: Path, episodes: int, mode: EvaluationMode) -> dict[int, Any]:
    """Return what a worker plays in evaluation with the weights of the newest checkpoint, by seed."""
    spec, checkpoint = ready(experiment).spec, newest(run_dir)
    sizes = {name: len(policy.actor().flat()) for name, policy in spec.policies.items()}  # type: ignore[attr-defined]
    weights = {}
    for name, learner in spec.learners.items():
        flat = from_bytes(checkpoint.read(f"learner.{name}"))["published"]
        for member in learner.members:
            weights[member], flat = Weights(1, flat[: sizes[member]]), flat[sizes[member] :]
    runtime, requests = InlineRuntime(), [EvaluationRequest(range(episodes), weights, None, mode)]
    parts = runtime.start(spec)
    PLAYED.clear()

    def play() -> Any:
        if not requests:
            raise StopIteration
        return begun(parts.workers.evaluate(requests.pop()))

    try:
        Executor(Plan("evaluate", source(play, name="Play")), lambda _plan, _item: None).run_sync()
    finally:
        runtime.close()
    return dict(PLAYED)


def by_hand(team: mf.Team, episodes: int, mode: EvaluationMode, seed: int = 0, **who: str) -> dict[int, Any]:
    """Return the same from a loop of a user's own."""
    env = team.make_env()
    PLAYED.clear()
    for episode in range(episodes):
        start = team.reset(seed=seed, episode=episode)
        if isinstance(env, AECEnv):
            env.reset(seed=start)
            for agent in env.agent_iter():
                seen, _, ended, cut, info = env.last()
                env.step(None if ended or cut else team.act(agent, seen, info, mode, who.get(agent)))
            continue
        seen, infos = env.reset(seed=start)
        while env.agents:
            actions = {a: team.act(a, seen[a], infos[a], mode, who.get(a)) for a in env.agents}
            seen, _, _, _, infos = env.step(actions)
    env.close()
    return dict(PLAYED)


def played_alike(first: dict[int, Any], second: dict[int, Any]) -> bool:
    """Whether the same agents took the same actions: equal whole numbers, and floats up to rounding."""
    # A matrix product of one row may differ from that of many in the last bit.
    return first.keys() == second.keys() and all(
        [agent for agent, _ in first[seed]] == [agent for agent, _ in second[seed]]
        and all(np.allclose(a, b, 0, 1e-6) for (_, a), (_, b) in zip(first[seed], second[seed], strict=True))
        for seed in first
    )
