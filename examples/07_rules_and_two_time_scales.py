"""A shield, a task in time, and a manager above a worker: what wrappers add to any algorithm.

First, a courier has to fetch a parcel and then deliver it, on a floor with a pit. Which way to go depends on whether
it has the parcel, so the task is an automaton, whose state the courier sees; a shield keeps it out of the pit from its
first step on. Then a dispatcher, which alone sees where parcels go, tells the courier which way to walk: DQN above PPO.
Read the experiments at the end of this file first; the environments above use nothing of marlflow.

    python examples/07_rules_and_two_time_scales.py          one process, some thirty seconds
"""

import json
from functools import partial
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

import marlflow as mf
from marlflow.env.wrappers.automaton_task import automaton
from marlflow.env.wrappers.managed import managed
from marlflow.env.wrappers.shield import shield

# P is where parcels are, D the door, and x a pit; the courier starts at S.
FLOOR = ("P..x", ".S..", "...D")
ROWS, COLUMNS = len(FLOOR), len(FLOOR[0])
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
falls = 0


def after(cell: int, action: int) -> int:
    """Return the cell after a move; at a wall it stays the same."""
    row, column = divmod(cell, COLUMNS)
    down, right = MOVES[action]
    return min(max(row + down, 0), ROWS - 1) * COLUMNS + min(max(column + right, 0), COLUMNS - 1)


def sign(cell: int) -> str:
    """Return the sign of a cell on the floor."""
    return FLOOR[cell // COLUMNS][cell % COLUMNS]


class Floor(ParallelEnv):  # type: ignore[misc]  # PettingZoo's classes have no types
    """A courier walks for 20 steps; a step into the pit ends its day. The floor pays nothing."""

    metadata: ClassVar[dict[str, Any]] = {"name": "floor_v0"}
    possible_agents: ClassVar[list[str]] = ["courier_0"]

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.cells, self.moves = Discrete(ROWS * COLUMNS), Discrete(len(MOVES))

    def observation_space(self, agent: str) -> Discrete:
        return self.cells

    def action_space(self, agent: str) -> Discrete:
        return self.moves

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self.agents, self.cell, self.steps = self.possible_agents[:], "".join(FLOOR).index("S"), 0
        return {"courier_0": np.int64(self.cell)}, {"courier_0": {}}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        global falls  # noqa: PLW0603  all environments of this process count together
        self.cell, self.steps = after(self.cell, int(actions["courier_0"])), self.steps + 1
        fell, is_late = sign(self.cell) == "x", self.steps == 20
        falls += fell
        if fell or is_late:
            self.agents = []
        seen, one = {"courier_0": np.int64(self.cell)}, "courier_0"
        return seen, {one: 0.0}, {one: fell}, {one: is_late and not fell}, {one: {}}


def stays_out(observation: Any, _: str) -> Any:
    """Return which moves do not lead into the pit."""
    return np.array([sign(after(int(observation), action)) != "x" for action in range(len(MOVES))])


def labels(observation: Any, _: str) -> list[str]:
    """Return what is true in the courier's cell."""
    return {"P": ["parcel"], "D": ["door"]}.get(sign(int(observation)), [])


FETCH_AND_DELIVER = {
    "states": ["empty", "loaded", "done"],
    "initial": "empty",
    "accepting": [["done"]],
    "transitions": [
        {"from": "empty", "when": "parcel", "to": "loaded"},
        {"from": "empty", "when": "!parcel", "to": "empty"},
        {"from": "loaded", "when": "door", "to": "done"},
        {"from": "loaded", "when": "!door", "to": "loaded"},
        {"from": "done", "to": "done"},
    ],
}


class Street(ParallelEnv):  # type: ignore[misc]
    """A parcel goes to one end of a street, at -4 or 4, which only the state says, and only in the first step."""

    metadata: ClassVar[dict[str, Any]] = {"name": "street_v0"}
    possible_agents: ClassVar[list[str]] = ["courier_0"]

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.state_space = Box(-1.0, 1.0, (1,), np.float32)
        self.places, self.moves = Box(-1.0, 1.0, (1,), np.float32), Discrete(2)
        self.random = np.random.default_rng()

    def observation_space(self, agent: str) -> Box:
        return self.places

    def action_space(self, agent: str) -> Discrete:
        return self.moves

    def state(self) -> Any:
        return np.array([self.goal if self.steps == 0 else 0], np.float32)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.agents, self.place, self.steps = self.possible_agents[:], 0, 0
        self.goal = int(self.random.choice([-1, 1]))
        return {"courier_0": np.zeros(1, np.float32)}, {"courier_0": {}}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        self.place, self.steps = self.place + (1 if actions["courier_0"] else -1), self.steps + 1
        is_there, is_late = abs(self.place) == 4, self.steps == 10
        if is_there or is_late:
            self.agents = []
        seen, one = {"courier_0": np.array([self.place / 4], np.float32)}, "courier_0"
        reward = float(self.place == 4 * self.goal)
        return seen, {one: reward}, {one: is_there}, {one: is_late and not is_there}, {one: {}}


def obeys(observation: Any, option: Any, following: Any) -> float:
    """Return 1 for a step in the direction that the dispatcher said (0: left, 1: right), else -1."""
    return float(np.sign(following[0] - observation[0])) * (1.0 if option else -1.0)


def trained(env: mf.Env, policies: dict[str, mf.Policy], env_steps: int, name: str) -> dict[str, float]:
    """Train, and return each policy's mean return in the evaluation at the end."""
    experiment = mf.Experiment(
        env=env,
        policies=policies,
        runtime=mf.RuntimeConfig("inline"),
        stop=mf.Stop(env_steps=env_steps),
        evaluation=mf.Evaluation(episodes=0, final_episodes=50),
        log=mf.Log(every_env_steps=env_steps // 4),
        name=name,
    )
    result = mf.train(experiment)
    last = json.loads((result.run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    return {policy: last["policies"][policy]["eval_return_mean"] for policy in policies}


def main() -> None:
    """Train a courier with a shield and a task, then a dispatcher and a courier; print what they reach."""
    rules = (partial(shield, safe=stays_out), partial(automaton, labels=labels, automaton=FETCH_AND_DELIVER))
    alone = mf.Policy(mf.PPO(batch_agent_steps=500, learning_rate=3e-3, entropy_coefficient=0.01))
    done = trained(mf.Env(Floor, wrappers=rules), {"courier": alone}, 12_000, "floor")["courier"]
    print(f"courier (ppo): fetched and delivered in {done:.0%} of its days, fell {falls} times in all of training")

    orders = partial(managed, options=2, every=10, manager="dispatcher", manager_sees="state", intrinsic=obeys)
    dispatcher = mf.DQN(
        batch_agent_steps=32,
        train_every_agent_steps=2,
        learning_starts_agent_steps=100,
        replay_agent_steps=1_000,
        learning_rate=3e-3,
        target_every_updates=50,
        epsilon=mf.Linear(1.0, 0.1, 1_000),
    )
    courier = mf.PPO(batch_agent_steps=500, learning_rate=3e-3)
    both = {"dispatcher": mf.Policy(dispatcher), "courier": mf.Policy(courier)}
    got = trained(mf.Env(Street, wrappers=(orders,)), both, 15_000, "street")
    print(f"dispatcher (dqn) above courier (ppo): {got['dispatcher']:.0%} of parcels at the right end")


if __name__ == "__main__":
    main()
