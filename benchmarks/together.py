"""Compare the main job with the theoretical best: sampling alone, then the slower of the two learners alone.

This is the measure of the RLlib Flow paper (arXiv:2011.12719, section 5). Everything is measured in one run, in turns,
and compared by medians.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.setting import bare_per_s, experiment, set_up
from marlflow.batches.items import Packed
from marlflow.config.checked import CheckedExperiment
from marlflow.config.experiment import Experiment
from marlflow.config.plans import RoundHooks, build_plan
from marlflow.flow import Executor
from marlflow.flow.protocols import stage_call
from marlflow.runtime.protocol import RunComponents
from marlflow.sampling.protocol import Request, Round
from marlflow.stages import (
    Advantages,
    Draw,
    DropStale,
    Insert,
    Learn,
    Normalize,
    NStep,
    Publish,
    Reprioritize,
    SyncTarget,
)

# 200 env steps are few: they are soonest made in few ticks of many environments.
SMALL_NUM_ENVS = 40
EXPLORE = {"dqn": {"epsilon": 1.0}}


@dataclass(frozen=True)
class Figures:
    """Median seconds per round, of each component alone and of all together, and env steps per round."""

    sample_s: float
    ppo_s: float
    dqn_s: float
    together_s: float
    env_steps: float
    ppo_updates: float
    dqn_updates: float

    @property
    def best_s(self) -> float:
        """The seconds of a round if nothing ever waited."""
        return self.sample_s + max(self.ppo_s, self.dqn_s)

    @property
    def share_of_best(self) -> float:
        """The share of the theoretical best, which is 1."""
        return self.best_s / self.together_s


async def sample(parts: RunComponents, rounds: int) -> tuple[float, list[Round]]:
    """Seconds per round of sampling alone, and the rounds."""
    weights = parts.published()
    made: list[Round] = []
    began = time.perf_counter()
    for number in range(rounds):
        made.append(await parts.workers.collect(Request(number, weights, EXPLORE)))
    return (time.perf_counter() - began) / rounds, made


def packed(round: Round, policy: str) -> Packed:
    """Return one policy's rows of a round, unopened."""
    fragments = [fragment for fragment in round.fragments if fragment.policy == policy]
    return Packed(sum(f.rows for f in fragments), tuple(p for f in fragments for p in f.payloads))


class Alone:
    """Each learner alone, on rows that exist already."""

    def __init__(self, made: CheckedExperiment, parts: RunComponents) -> None:
        ppo: Any = made.spec.policies["ppo"].algorithm
        dqn: Any = made.spec.policies["dqn"].algorithm
        on, off, replay = parts.learners["ppo"], parts.learners["dqn"], parts.replays["dqn"]
        estimate = [DropStale(1 << 30), Advantages(ppo.discount, ppo.gae_lambda), Normalize()]
        learn = [*estimate, Learn(ppo.epochs, ppo.minibatch_agent_steps), Publish()]
        self._ppo = on.place.prepare([stage_call(operator, on) for operator in learn])
        store = [NStep(dqn.n_step, dqn.discount), Insert()]
        self._insert = off.place.prepare([stage_call(operator, replay) for operator in store])
        draw = stage_call(Draw(dqn.batch_agent_steps), replay, is_source=True)
        update = [stage_call(Learn(), off), stage_call(Reprioritize(), replay)]
        renew = [SyncTarget(dqn.target_every_updates), Publish(dqn.publish_every_updates)]
        self._dqn = off.place.prepare([draw, *update, *(stage_call(operator, off) for operator in renew)])
        self._per = dqn.train_every_agent_steps

    async def ppo(self, rounds: list[Round]) -> tuple[float, float]:
        """Seconds and updates per round."""
        began, updates = time.perf_counter(), 0
        for made in rounds:
            updates += (await self._ppo([packed(made, "ppo")])).outputs[0].updates
        return (time.perf_counter() - began) / len(rounds), updates / len(rounds)

    async def dqn(self, rounds: list[Round]) -> tuple[float, float]:
        """Seconds and updates per round."""
        began, rows, updates = time.perf_counter(), 0, 0
        for made in rounds:
            item = packed(made, "dqn")
            await self._insert([item])
            rows += item.rows
            if (due := rows // self._per - updates) > 0:
                await self._dqn([None] * due)
                updates += due
        return (time.perf_counter() - began) / len(rounds), updates / len(rounds)


async def together(setting: Experiment, made: CheckedExperiment, parts: RunComponents, rounds: int) -> float:
    """Seconds per round of the whole plan."""
    left = rounds

    def next_request() -> Request | None:
        nonlocal left
        left -= 1
        weights = parts.published()
        return Request(rounds - left, weights, EXPLORE) if left >= 0 else None

    executor = Executor(build_plan(setting, made.spec, parts, RoundHooks(next_request, lambda round: round)))
    began = time.perf_counter()
    await executor.run()
    return (time.perf_counter() - began) / rounds


async def measure(
    setting: Experiment, made: CheckedExperiment, parts: RunComponents, rounds: int, repeats: int
) -> Figures:
    """All figures, in turns."""
    alone = Alone(made, parts)
    rows: list[tuple[float, ...]] = []
    for repeat in range(repeats + 1):
        sample_s, ready_rounds = await sample(parts, rounds)
        ppo_s, ppo_updates = await alone.ppo(ready_rounds)
        dqn_s, dqn_updates = await alone.dqn(ready_rounds)
        together_s = await together(setting, made, parts, rounds)
        env_steps = sum(one.env_steps for one in ready_rounds) / rounds
        if repeat:  # the first is a warm-up
            rows.append((sample_s, ppo_s, dqn_s, together_s, env_steps, ppo_updates, dqn_updates))
    return Figures(*(statistics.median(column) for column in zip(*rows, strict=True)))


# RLlib Flow's own example ran 706 to 738 env steps/s where bare stepping gave 60,000 (Ray 1.9.2).
RLLIB_FLOW_SHARE_OF_BARE = 722 / 60_000


def report(env_steps_per_round: int, num_envs: int, rounds: int, repeats: int = 5) -> Figures:
    """Measure and print."""
    setting = experiment(env_steps_per_round, num_envs)
    with set_up(setting) as (made, parts):
        bare = bare_per_s().env_steps
        figures = asyncio.run(measure(setting, made, parts, rounds, repeats))
        bare = (bare + bare_per_s().env_steps) / 2
    share = figures.env_steps / figures.together_s / bare
    ceiling = figures.env_steps / max(figures.ppo_s, figures.dqn_s) / bare
    print(
        f"PPO + DQN, rounds of {figures.env_steps:.0f} env steps: sampling {figures.sample_s * 1e3:.2f} ms, "
        f"PPO {figures.ppo_s * 1e3:.2f} ms for {figures.ppo_updates:.0f} updates, "
        f"DQN {figures.dqn_s * 1e3:.2f} ms for {figures.dqn_updates:.1f}, together {figures.together_s * 1e3:.2f} ms\n"
        f"  {figures.share_of_best:.3f} of the theoretical best (target 0.85)\n"
        f"  {figures.env_steps / figures.together_s:,.0f} env steps/s, {share:.3f} of bare ({bare:,.0f}), "
        f"{share / RLLIB_FLOW_SHARE_OF_BARE:.1f} times RLlib Flow's (target 14); an optimizer step of PPO costs "
        f"{figures.ppo_s / figures.ppo_updates * 1e6:.0f} us here: by that alone at most {ceiling:.3f} of bare",
        flush=True,
    )
    return figures


if __name__ == "__main__":
    report(200, num_envs=SMALL_NUM_ENVS, rounds=200)
    report(2_000, num_envs=64, rounds=25)
