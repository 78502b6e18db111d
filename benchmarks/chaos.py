"""Kill processes of a run over Ray for a minute while it trains, then check its learning and repeated work.

    python -m benchmarks.chaos --seconds 60

The exit code is 1 if anything is wrong. The short form is tests/runtime/ray/test_chaos.py.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from marlflow.config.experiment import (
    CheckpointConfig,
    Env,
    Evaluation,
    Experiment,
    Faults,
    Log,
    PlacementOverrides,
    Policy,
    Rollouts,
    RuntimeConfig,
    Stop,
)
from marlflow.driver.train import Result, train
from marlflow.sampling.mapping import Rule
from tests.runtime.ray import chaos_parts
from tests.runtime.ray.chaos_checks import OFF_POLICY, ON_POLICY, Evidence, violations
from tests.runtime.ray.chaos_killer import Killer
from tests.runtime.ray.chaos_parts import Carts, JournalledDQN, JournalledPPO

TARGET_RETURN = 150.0
BUDGET_ENV_STEPS = 600_000
REWARDS = (0.5, 1.0)
"""While processes are killed, and then: so that no return of 200 env steps ends the run before."""
APART_S = 3.0
PARTS = {"worker": 2, f"learner-{ON_POLICY}": 1, f"learner-{OFF_POLICY}": 1, f"replay-{OFF_POLICY}": 1}


def experiment(folder: Path, seed: int) -> Experiment:
    """Return PPO and DQN, with a prioritized replay in its own process and two carts each, until both have learned."""
    ppo = JournalledPPO(batch_agent_steps=2_000, folder=folder)
    dqn = JournalledDQN(prioritized=True, folder=folder)
    return Experiment(
        env=Env(partial(Carts, folder, max_cycles=200, rewards=REWARDS), num_envs=16),
        policies={ON_POLICY: Policy(ppo), OFF_POLICY: Policy(dqn, placement=PlacementOverrides(replay="own"))},
        mapping=(Rule("cart_[01]", ON_POLICY), Rule("*", OFF_POLICY)),
        rollouts=Rollouts(num_workers=2, fragment_env_steps=512),
        runtime=RuntimeConfig("ray"),
        stop=Stop(env_steps=BUDGET_ENV_STEPS, policies=dict.fromkeys((ON_POLICY, OFF_POLICY), TARGET_RETURN)),
        evaluation=Evaluation(episodes=0),
        faults=Faults(workers_lost=1_000, learners_lost=1_000, replays_lost=1_000, checkpoints_failed=1_000),
        checkpoint=CheckpointConfig(every_env_steps=5_000),
        log=Log(every_env_steps=5_000, console="none", tensorboard=False),
        seed=seed,
    )


def report(seconds: float = 60.0, seed: int = 0) -> list[str]:
    """Train, kill, and print; return what was wrong."""
    chosen = random.Random(seed)
    victims = chosen.choices(list(PARTS), weights=list(PARTS.values()), k=10_000)
    with tempfile.TemporaryDirectory() as found:
        journals = Path(found) / "journals"
        journals.mkdir()
        setting = experiment(journals, seed)
        killer = Killer(journals, victims, PARTS, (journals / "enough").touch, APART_S, seed)
        result = _chaotic(setting, Path(found) / "run", killer, seconds)
        killed = [process for _, process in killer.killed]
        evidence = Evidence(journals, result.metrics, killed, seed, setting.env.num_envs, JournalledDQN())
        wrong = violations(evidence)
    policies = result.metrics["policies"]
    returns = {name: policies[name]["return_mean"] or 0.0 for name in policies}
    wrong += [f"{name} came to {mean:.0f} only" for name, mean in returns.items() if mean < TARGET_RETURN]
    kills = ", ".join(f"{count} {part}" for part, count in sorted(Counter(part for part, _ in killer.killed).items()))
    means = ", ".join(f"{name} {mean:.0f}" for name, mean in returns.items())
    faults = ", ".join(f"{kind} {count}" for kind, count in result.metrics["faults"].items() if count)
    print(
        f"{len(killer.killed)} kills in {seconds:.0f} s ({kills}); it ended after {result.metrics['time_s']:.0f} s and "
        f"{result.metrics['env_steps']:,} env steps by {result.stopped_by} with returns of {means}\n"
        f"  counted: {faults}\n  wrong: {'; '.join(wrong) or 'nothing'}",
        flush=True,
    )
    return wrong


def _chaotic(setting: Experiment, run_dir: Path, killer: Killer, seconds: float) -> Result:
    end = threading.Timer(seconds, killer.stop)

    def round_begins() -> None:
        if end.ident is None:  # the time is that of the run, without its start
            end.start()
        killer.round_begins()

    chaos_parts.BETWEEN_ROUNDS.append(round_begins)
    try:
        return train(setting, run_dir)
    finally:
        end.cancel()
        killer.stop()
        chaos_parts.BETWEEN_ROUNDS.remove(round_begins)


def main(words: Sequence[str] | None = None) -> None:
    """Run the benchmark, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(words)
    sys.exit(1 if report(asked.seconds, asked.seed) else 0)


if __name__ == "__main__":
    main()
