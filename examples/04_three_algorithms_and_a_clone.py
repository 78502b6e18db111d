"""Three algorithms in one run, and a fourth that learns from the recorded rows of one of them.

An environment with six cart-poles. PPO balances two, with a learning rate that falls along a cosine; DQN two, with an
optimizer of torch; SAC two. The rows of PPO's policy are recorded. Then `clone` learns with MARWIL from the records
alone, and plays episodes only for evaluation.

    python examples/04_three_algorithms_and_a_clone.py
"""

import torch

import marlflow as mf
from marlflow.env.games import cartpole_team
from marlflow.learner.optimizer import TorchOptimizer

ENV_STEPS = 10_000
RANDOM_RETURN = 22.0


def school() -> mf.Experiment:
    """Return the run in which three policies learn, each from its own two carts; the rows of `ppo` are recorded."""
    return mf.Experiment(
        env=mf.Env(cartpole_team.parallel_env, {"num_agents": 6}, num_envs=8),
        policies={
            "ppo": mf.Policy(
                mf.PPO(batch_agent_steps=1_600, learning_rate=mf.CosineDecay(2e-3, 1e-4, agent_steps=2 * ENV_STEPS))
            ),
            "dqn": mf.Policy(
                mf.DQN(
                    learning_rate=1e-3,
                    optimizer=TorchOptimizer(torch.optim.RMSprop, {"alpha": 0.95}),
                    epsilon=mf.Linear(1.0, 0.05, agent_steps=ENV_STEPS),
                )
            ),
            "sac": mf.Policy(
                mf.SAC(learning_rate=2e-3, batch_agent_steps=64, train_every_agent_steps=4),
                mf.MLP(activation="relu"),
            ),
        },
        mapping=[mf.Rule("cart_[01]", "ppo"), mf.Rule("cart_[23]", "dqn"), mf.Rule("cart_[45]", "sac")],
        rollouts=mf.Rollouts(num_workers=1),
        runtime=mf.RuntimeConfig("inline"),
        stop=mf.Stop(env_steps=ENV_STEPS),
        record=mf.Record(policies=["ppo"]),
        name="school",
    )


def watching(folder: str) -> mf.Experiment:
    """Return the run in which `clone` learns from all rows of `ppo`, each three times; it ends with the records."""
    return mf.Experiment(
        env=mf.Env("marlflow.offline.environment.recorded_environment", {"folder": folder, "passes": 3}),
        policies={"clone": mf.Policy(mf.MARWIL(batch_agent_steps=1_600, beta=1.0))},
        mapping=[mf.Rule("*", "clone")],
        rollouts=mf.Rollouts(num_workers=1),
        runtime=mf.RuntimeConfig("inline"),
        stop=mf.Stop(env_steps=10 * ENV_STEPS),
        name="clone",
    )


def main() -> None:
    """Train three policies, then one from the records, and print the final evaluation of each."""
    result = mf.train(school())
    print(f"chance: {RANDOM_RETURN:.0f}")
    for name, policy in result.metrics["policies"].items():
        print(f"{name}: a return of {policy['eval_return_mean']:.0f}")
    metrics = mf.train(watching(str(result.run_dir / "record"))).metrics
    score, rows = metrics["policies"]["clone"]["eval_return_mean"], metrics["learners"]["clone"]["agent_steps_trained"]
    print(f"clone: a return of {score:.0f}, from {rows} recorded agent steps")


if __name__ == "__main__":
    main()
