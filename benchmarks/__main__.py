"""Run all benchmarks one after the other: `make bench`. Endurance is left out, because it takes half an hour."""

from __future__ import annotations

from benchmarks import (
    against_benchmarl,
    against_rllib,
    against_sb3,
    batched,
    chaos,
    devices,
    imitation,
    league,
    league_learning,
    learner_step,
    learning,
    meta,
    output,
    rollout_worker,
    sampling,
    suite,
    team_bars,
    team_references,
    together,
)


def main() -> None:
    """Run all benchmarks, and print their results."""
    print("-- one worker on one core", flush=True)
    rollout_worker.main()
    rollout_worker.main(["--memory", "--env", "cartpole_team", "connect_four"])
    print("-- environments that are stepped by one call", flush=True)
    batched.main([])
    print("-- one worker against 50 frozen versions and against 2", flush=True)
    league.main()
    print("-- one optimizer step, one thread", flush=True)
    learner_step.main()
    print("-- devices and precisions", flush=True)
    devices.report()
    print("-- two workers, sampling only", flush=True)
    sampling.report()
    print("-- an environment that prints", flush=True)
    output.report()
    print("-- PPO and DQN together", flush=True)
    together.report(200, num_envs=together.SMALL_NUM_ENVS, rounds=200)
    together.report(2_000, num_envs=64, rounds=25)
    print("-- beside RLlib", flush=True)
    against_rllib.report()
    print("-- learners beside Stable-Baselines3's", flush=True)
    against_sb3.report()
    print("-- teams beside BenchMARL's, three seeds", flush=True)
    against_benchmarl.main()
    print("-- the demo, five seeds", flush=True)
    learning.report()
    print("-- every algorithm, five seeds that no setting was chosen on", flush=True)
    suite.report()
    print("-- imitation from an expert's records, three seeds", flush=True)
    imitation.report()
    print("-- one inner step on held-out tasks, three seeds", flush=True)
    meta.report()
    print("-- leagues on games whose solutions are known, three seeds", flush=True)
    league_learning.main(list(league_learning.CASES))
    print("-- teams on games whose solutions are known, three seeds", flush=True)
    team_references.main()
    team_bars.main(["*"])
    print("-- processes killed for a minute", flush=True)
    chaos.report()


if __name__ == "__main__":
    main()
