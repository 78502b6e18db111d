"""Three algorithms at once, and a fourth that learns from what one of them did.

Six cart-poles stand in one environment. Two are balanced by PPO, whose learning rate falls along a cosine; two by DQN,
whose optimizer is one of torch's; two by SAC. What PPO's did is recorded. Then `clone` learns with MARWIL from the
records alone, and plays an episode only to show what it has learned.

    python examples/04_three_algorithms_and_a_clone.py
"""

import torch

import marlflow as mf
from marlflow.env import cartpole_team
from marlflow.learner.optimizer import TorchOptimizer

ENV_STEPS = 10_000
RANDOM_RETURN = 22.0


def school() -> mf.Experiment:
    """Three policies learn side by side, each from its own two carts; the rows of `ppo` are recorded."""
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
    """`clone` learns from what `ppo` did, the bad and the good, each row three times; it ends with the records."""
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
    """Trains three, then one from their records, and says what each came to."""
    result = mf.train(school())
    print(f"chance: {RANDOM_RETURN:.0f}")
    for name, policy in result.metrics["policies"].items():
        print(f"{name}: a return of {policy['eval_return_mean']:.0f}")
    metrics = mf.train(watching(str(result.run_dir / "record"))).metrics
    score, rows = metrics["policies"]["clone"]["eval_return_mean"], metrics["learners"]["clone"]["agent_steps_trained"]
    print(f"clone: a return of {score:.0f}, from {rows} recorded agent steps")


if __name__ == "__main__":
    main()
