"""Numbers in infos as columns of transitions that replays give to losses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from pettingzoo.utils.wrappers import BaseParallelWrapper

import marlflow as mf
from marlflow.env.games import cartpole_team
from tests.runtime.small_runs import SMALL, SMALL_DQN, small_run

BY_ALGORITHM = {
    "dqn": (replace(SMALL_DQN, n_step=3), SMALL),
    "r2d2": (
        mf.R2D2(learning_starts_agent_steps=200, sequence_agent_steps=4, burn_in_agent_steps=2, n_step=2),
        mf.GRU(8, (8,)),
    ),
    "qmix": (mf.QMIX(learning_starts_agent_steps=200, mixer_sees="observations"), SMALL),
    "recurrent vdn": (mf.VDN(learning_starts_agent_steps=200, sequence_agent_steps=4), mf.GRU(8, (8,))),
}


class Telling(BaseParallelWrapper[str, Any, Any]):
    """An agent's reward is its number and that of the env step modulo 3; infos have twice the reward, and the step."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.at = 0
        return super().reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        self.at += 1
        seen, _, *ends, _ = super().step(actions)
        rewards = {agent: float(int(agent[-1]) + self.at % 3) for agent in seen}
        infos = {agent: {"twice": 2.0 * reward, "step": self.at} for agent, reward in rewards.items()}
        return seen, rewards, *ends, infos


class Kept:
    """A term of 0 of the loss, which keeps the minibatches."""

    def __init__(self) -> None:
        self.minibatches: list[dict[str, torch.Tensor]] = []

    def __call__(self, module: Any, minibatch: Any) -> torch.Tensor:
        self.minibatches.append({name: column.double() for name, column in minibatch.items()})
        return 0.0 * next(module.parameters()).sum()


@pytest.mark.parametrize("name", BY_ALGORITHM)
def test_transitions_have_the_columns_of_their_rows(name: str) -> None:
    algorithm, model = BY_ALGORITHM[name]
    kept = Kept()
    watched = replace(algorithm, extra_losses={"kept": mf.ExtraLoss(kept)}, compile=False)
    columns = {"twice": "credited", "step": "info"}
    result = mf.train(
        small_run(
            env=mf.Env(lambda: Telling(cartpole_team.parallel_env(max_cycles=20)), num_envs=4),
            policies={"team": mf.Policy(watched, model, columns=columns)},
            mapping=[mf.Rule("*", "team")],
            stop=mf.Stop(env_steps=400),
        )
    )
    updates = result.metrics["learners"]["team"]["updates"]
    assert updates > 3
    # Earlier ones are of the check before the run.
    for minibatch in kept.minibatches[-updates:]:
        assert minibatch.get("step", minibatch.get("team:step")).max() > 3
        (_of_team if "team:step" in minibatch else _of_agents)(minibatch)


def _of_agents(minibatch: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(minibatch["twice"], 2.0 * minibatch["reward"], rtol=1e-6, atol=1e-6)


def _of_team(minibatch: dict[str, torch.Tensor]) -> None:
    step, twice, reward = (minibatch[f"team:{name}"] for name in ("step", "twice", "reward"))
    here = step > 0
    # The rewards of agents belong to the row itself.
    numbers = torch.arange(step.shape[-1]).expand(step.shape)
    torch.testing.assert_close(reward[here], (numbers + step % 3)[here])
    if "trained" in minibatch:  # windows of one row
        torch.testing.assert_close(twice, 2.0 * reward)
        return
    whole = here & torch.isclose(minibatch["discount"], torch.tensor(0.99**3).double())[:, None]
    assert whole.any()
    sums = sum(0.99**k * (numbers + (step + k) % 3) for k in range(3))
    # An agent that ends within the window gets less.
    exact = torch.isclose(twice, 2.0 * sums) & whole
    assert exact.sum() > 0.5 * whole.sum()
    assert (twice[whole] <= 2.0 * sums[whole] + 1e-4).all()
