"""A limit on costs: heaters may be high a quarter of the time on average, and learn to warm the most within it.

Each of two heaters chooses three times per night: high warms by 2 and costs 1, low warms by 1. Without a limit both are
always high. SAC with the part `CostLimit(0.75)` keeps the mean cost of a heater's night at .75, a
quarter of 3, and finds what a cost of 1 is worth in rewards: the multiplier. The environment steps many nights at once,
with arrays; a PettingZoo environment would have the costs in `info["cost"]`.

    python examples/09_a_limit_on_costs.py          one process, some ten seconds
"""

import json
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete

import marlflow as mf

HOURS = 3


class Nights:
    """`num_envs` nights of two heaters, which see the hour."""

    metadata: ClassVar[dict[str, Any]] = {"name": "nights_v0"}
    groups: ClassVar[dict[str, list[str]]] = {"heater": ["heater_0", "heater_1"]}
    turn_based = False
    info_keys = ("cost",)

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self.hour = num_envs, np.zeros(num_envs, np.int64)
        self.hours, self.switch = Box(0.0, 1.0, (1,), np.float32), Discrete(2)

    def observation_space(self, agent: str) -> Box:
        return self.hours

    def action_space(self, agent: str) -> Discrete:
        return self.switch

    def reset(self, envs: Any, seeds: Any) -> mf.BatchedStep:
        self.hour[envs] = 0
        return mf.BatchedStep({"heater": self.see()})

    def step(self, actions: Any) -> mf.BatchedStep:
        self.hour += 1
        is_high = actions["heater"].astype(np.float64)
        over = np.repeat((self.hour >= HOURS)[:, None], 2, axis=1)
        return mf.BatchedStep(
            {"heater": self.see()},
            rewards={"heater": 1.0 + is_high},
            terminated={"heater": over},
            truncated={"heater": np.zeros_like(over)},
            infos={"cost": {"heater": is_high}},
        )

    def see(self) -> Any:
        hour = np.minimum(self.hour, HOURS)[:, None, None] / HOURS
        return np.repeat(hour, 2, axis=1).astype(np.float32)

    def close(self) -> None:
        pass


def trained(limit: float | None, env_steps: int) -> dict[str, Any]:
    """Train with a limit, or without one; return the last report."""
    heater = mf.SAC(
        parts={"cost": None if limit is None else mf.CostLimit(limit, mf.Linear(0.02, 0.002, 20_000))},
        # A fixed temperature: the policy stays as mixed as the limit needs it.
        temperature=0.1,
        discount=1.0,
        tau=0.02,
        learning_rate=3e-3,
        batch_agent_steps=128,
        train_every_agent_steps=32,
        learning_starts_agent_steps=500,
        replay_agent_steps=10_000,
    )
    experiment = mf.Experiment(
        env=mf.Env(Nights, num_envs=32),
        policies={"heater": mf.Policy(heater, mf.MLP((16,)))},
        rollouts=mf.Rollouts(num_workers=1, fragment_env_steps=96),
        runtime=mf.RuntimeConfig("inline"),
        stop=mf.Stop(env_steps=env_steps),
        # The best policy is mixed, so it is evaluated as it plays.
        evaluation=mf.Evaluation(episodes=0, final_episodes=500),
        log=mf.Log(every_env_steps=env_steps // 2, console="none"),
        name="limited" if limit is not None else "unlimited",
    )
    result = mf.train(experiment)
    report: dict[str, Any] = json.loads((result.run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    return report


def main() -> None:
    """Train without and with a limit, and print what the nights bring and cost."""
    free = trained(None, 3_000)["policies"]["heater"]
    print(f"without a limit: warmth {free['eval_return_mean']:.2f} per night")
    report = trained(0.75, 12_000)
    kept, multiplier = report["policies"]["heater"], report["learners"]["heater"]["loss"]["multiplier"]
    print(
        f"with a limit of .75: warmth {kept['eval_return_mean']:.2f} per night, which costs "
        f"{kept['eval_infos']['cost']:.2f}; a cost of 1 is worth {multiplier:.2f}"
    )


if __name__ == "__main__":
    main()
