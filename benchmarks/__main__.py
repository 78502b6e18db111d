"""Run all benchmarks one after the other: `make bench`. Endurance and the gallery are left out: they take too long."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks import (
    against_benchmarl,
    against_benchmarl_vmas,
    against_jaxmarl,
    against_rllib,
    against_sb3,
    batched,
    chaos,
    devices,
    driver_scale,
    functional,
    imitation,
    league,
    league_learning,
    learner_sizes,
    learner_step,
    learning,
    meta,
    output,
    page,
    ray_calls,
    rollout_worker,
    round_hops,
    sampling,
    start,
    suite,
    team_bars,
    team_references,
    together,
    two_machines,
)

BENCHMARKS: tuple[tuple[str, tuple[Callable[[], object], ...]], ...] = (
    ("the start of commands", (start.report,)),
    (
        "one worker on one core",
        (
            rollout_worker.main,
            partial(rollout_worker.main, ["--memory", "--env", "cartpole_team", "connect_four"]),
        ),
    ),
    ("environments that are stepped by one call", (partial(batched.main, []),)),
    ("functional environments, in single steps and compiled", (partial(functional.main, []),)),
    ("one worker against 50 frozen versions and against 2", (league.main,)),
    ("one optimizer step, one thread, also by size", (learner_step.main, learner_sizes.main)),
    ("devices and precisions", (devices.report,)),
    ("two workers, sampling only", (sampling.report,)),
    ("an environment that prints", (output.report,)),
    ("a run that serves a page", (partial(page.main, []),)),
    (
        "PPO and DQN together",
        (
            partial(together.report, 200, num_envs=together.SMALL_NUM_ENVS, rounds=200),
            partial(together.report, 2_000, num_envs=64, rounds=25),
            partial(round_hops.main, []),
        ),
    ),
    (
        "one driver for many workers: the driver alone, and Ray's calls",
        (
            partial(driver_scale.main, []),
            ray_calls.report,
        ),
    ),
    ("bytes between machines", (two_machines.report,)),
    ("beside RLlib", (against_rllib.report,)),
    ("learners beside Stable-Baselines3's", (against_sb3.report,)),
    ("teams beside BenchMARL's, three seeds", (against_benchmarl.main,)),
    ("beside BenchMARL on VMAS, three seeds", (against_benchmarl_vmas.main,)),
    ("beside JaxMARL's own IPPO, three seeds", (against_jaxmarl.main,)),
    ("the demo, five seeds", (learning.report,)),
    ("every algorithm, five seeds that no setting was chosen on", (suite.report,)),
    ("imitation from an expert's records, three seeds", (imitation.report,)),
    ("one inner step on held-out tasks, three seeds", (meta.report,)),
    (
        "leagues on games whose solutions are known, three seeds",
        (partial(league_learning.main, list(league_learning.CASES)),),
    ),
    (
        "teams on games whose solutions are known, three seeds",
        (
            team_references.main,
            partial(team_bars.main, ["*"]),
        ),
    ),
    ("processes killed for a minute", (chaos.report,)),
)
"""The title and the steps of each, in their order."""


def main() -> None:
    """Run all benchmarks, and print their results."""
    for title, steps in BENCHMARKS:
        print(f"-- {title}", flush=True)
        for step in steps:
            step()


if __name__ == "__main__":
    main()
