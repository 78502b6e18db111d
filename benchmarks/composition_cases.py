"""The cases of benchmarks/composition_bars.py: shields, automata, managers, references, limits on costs; controls."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.team_case import Case, learns_with, on_game
from benchmarks.token_answers import far_from_reference, near_reference, pays_for_leaving
from marlflow.env.games import cliff

_SHORT = (
    "env.num_envs=8",
    "rollouts.num_workers=1",
    "rollouts.fragment_env_steps=128",
    "checkpoint.every_env_steps=null",
    "evaluation.episodes=0",
)


def falls(run_dir: Path) -> tuple[int, str]:
    """Return the number of falls in all rows of a run with `record=dataset`."""
    rows = fallen = 0
    for file in sorted((run_dir / "record").rglob("*.rows.parquet")):
        rewards = pq.read_table(file, columns=["reward"])["reward"].to_numpy()
        rows += len(rewards)
        fallen += int(np.count_nonzero(rewards == cliff.FALL))
    last = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    sampled = sum(policy["agent_steps_sampled"] for policy in last["policies"].values())
    if rows != sampled:
        raise RuntimeError(f"{run_dir} recorded {rows:,} of {sampled:,} agent steps")
    other = last["policies"]["second"]["eval_return_mean"]
    return fallen, f"second (dqn) {other:.4g}; {fallen:,} falls in {rows:,} agent steps of training"


_CLIFF = (
    *on_game("cliff"),
    *learns_with("ppo", "first", batch_agent_steps=800, minibatch_agent_steps=200, learning_rate=3e-3, discount=1.0),
    *learns_with(
        "dqn",
        "second",
        learning_rate=1e-3,
        discount=1.0,
        n_step=1,
        train_every_agent_steps=4,
        learning_starts_agent_steps=500,
        target_every_updates=100,
        epsilon="{_target_: marlflow.Linear, start: 1.0, end: 0.05, agent_steps: 12000}",
    ),
    "mapping=[{match: walker_0, policy: first}, {match: walker_1, policy: second}]",
    *_SHORT,
    "evaluation.final_episodes=4",
    "stop.env_steps=25000",
    "record=dataset",
)
_SHIELDED = (*_CLIFF, "wrappers=shield", "env.wrappers.shield.safe=marlflow.env.games.cliff.stays_up")
_CLIFF_CASES = (
    Case("cliff_shielded", _SHIELDED, -13, -13, policy="first", count=falls),
    Case("cliff", _CLIFF, policy="first", is_control=True, count=falls, counted_from=1, counted_to=math.inf),
)

# Goal 1, then goal 2, and unsafe at no time before that.
_THEN = (
    "{states: [start, went, done, dead], initial: start, accepting: [[done]], sink: dead, transitions: ["
    "{from: start, when: 'goal1 & !unsafe', to: went}, {from: start, when: '!goal1 & !unsafe', to: start}, "
    "{from: start, when: unsafe, to: dead}, {from: went, when: 'goal2 & !unsafe', to: done}, "
    "{from: went, when: '!goal2 & !unsafe', to: went}, {from: went, when: unsafe, to: dead}, {from: done, to: done}]}"
)
_TASK = (
    "wrappers=automaton",
    "env.wrappers.automaton.labels=marlflow.env.games.gridworld.labels",
    "env.wrappers.automaton.sees=env",
    f"env.wrappers.automaton.automaton={_THEN}",
)
_WITHOUT_STATE = "+env.wrappers.without_state={_target_: benchmarks.composition_answers.without_state}"
_CORRIDOR = (*on_game("gridworld", "layout=corridor", "slip=0.0", "max_cycles=12"), *_TASK, *_SHORT)
_CORRIDOR_DQN = learns_with(
    "dqn",
    "walker",
    learning_rate=1e-3,
    n_step=3,
    discount=0.95,
    train_every_agent_steps=4,
    learning_starts_agent_steps=2_000,
    target_every_updates=200,
    epsilon="{_target_: marlflow.Linear, start: 1.0, end: 0.2, agent_steps: 60000}",
)
_ENDS = ("evaluation.final_episodes=4", "stop.env_steps=80000")
_GRID = (*on_game("gridworld"), *_TASK, *_SHORT, "evaluation.final_episodes=200")
_AUTOMATON_CASES = (
    Case("corridor_automaton_dqn", (*_CORRIDOR, *_CORRIDOR_DQN, *_ENDS), 1, 1, policy="walker"),
    Case(
        "corridor_memoryless_dqn",
        (*_CORRIDOR, _WITHOUT_STATE, *_CORRIDOR_DQN, *_ENDS),
        0,
        0,
        policy="walker",
        is_control=True,
    ),
    Case(
        "grid_automaton_dqn",
        (
            *_GRID,
            *learns_with(
                "dqn",
                "walker",
                # With a discount of .99 values differ so little that the greedy policy may go in circles, from which
                # exploration escapes.
                learning_rate="{_target_: marlflow.Linear, start: 1e-3, end: 1e-4, agent_steps: 120000}",
                n_step=3,
                discount=0.95,
                train_every_agent_steps=4,
                learning_starts_agent_steps=2_000,
                target_every_updates=200,
                epsilon="{_target_: marlflow.Linear, start: 1.0, end: 0.05, agent_steps: 80000}",
            ),
            "stop.env_steps=120000",
        ),
        0.95,
        1,
        policy="walker",
    ),
    Case(
        "grid_automaton_ppo",
        (
            *_GRID,
            *learns_with(
                "ppo",
                "walker",
                batch_agent_steps=4_000,
                minibatch_agent_steps=500,
                learning_rate=2e-3,
                # Before the first reward, normalized advantages are errors of the critic. Without entropy the policy
                # follows them, away from the goals, which random actions reach in .7 % of episodes.
                entropy_coefficient="{_target_: marlflow.Linear, start: 0.3, end: 0.005, agent_steps: 200000}",
            ),
            "stop.env_steps=300000",
        ),
        0.95,
        1,
        policy="walker",
    ),
)

# The manager decides once per episode. A worker gets its progress towards the end that it was told, and nothing else.
_SIGN = (
    *on_game("sign"),
    "wrappers=managed",
    "env.wrappers.managed.every=20",
    "env.wrappers.managed.manager=manager",
    "env.wrappers.managed.manager_sees=state",
    "env.wrappers.managed.worker_share=0.0",
    "env.wrappers.managed.intrinsic=marlflow.env.games.sign.reached",
    *_SHORT,
    "evaluation.final_episodes=100",
)
_BOX = "env.wrappers.managed.options={_target_: gymnasium.spaces.Box, low: -1.0, high: 1.0, shape: [1]}"
_WORKER_PPO = learns_with("ppo", "walker", batch_agent_steps=1_000, minibatch_agent_steps=250, learning_rate=2e-3)
# Going back and forth costs no progress in the end: with a discount near 1 it is worth nearly as much as going there.
_WORKER_DQN = learns_with(
    "dqn",
    "walker",
    learning_rate="{_target_: marlflow.Linear, start: 1e-3, end: 1e-5, agent_steps: 75000}",
    n_step=1,
    discount=0.5,
    train_every_agent_steps=8,
    learning_starts_agent_steps=1_000,
    target_every_updates=100,
    epsilon="{_target_: marlflow.Linear, start: 1.0, end: 0.05, agent_steps: 20000}",
)
# The worker changes while the manager learns, so the manager's replay is short.
_MANAGER_DQN = learns_with(
    "dqn",
    "manager",
    learning_rate=3e-3,
    n_step=1,
    batch_agent_steps=64,
    train_every_agent_steps=2,
    learning_starts_agent_steps=100,
    replay_agent_steps=1_000,
    target_every_updates=50,
    epsilon="{_target_: marlflow.Linear, start: 1.0, end: 0.1, agent_steps: 1500}",
)
# Its options are random at first, so that the worker learns all of them.
_MANAGER_DDPG = learns_with(
    "ddpg",
    "manager",
    learning_rate="{_target_: marlflow.Linear, start: 1e-3, end: 1e-4, agent_steps: 5000}",
    actor_learning_rate=1e-4,
    exploration_noise=1.0,
    tau=0.02,
    batch_agent_steps=128,
    train_every_agent_steps=1,
    learning_starts_agent_steps=1_000,
    replay_agent_steps=4_000,
)
_SIGN_CASES = (
    Case(
        "sign_dqn_above_ppo",
        (*_SIGN, "env.wrappers.managed.options=2", *_MANAGER_DQN, *_WORKER_PPO, "stop.env_steps=80000"),
        1,
        1,
        policy="manager",
    ),
    Case(
        "sign_ddpg_above_dqn",
        (*_SIGN, _BOX, *_MANAGER_DDPG, *_WORKER_DQN, "stop.env_steps=80000"),
        1,
        1,
        policy="manager",
    ),
    Case(
        "sign_flat_ppo",
        (*on_game("sign"), *_WORKER_PPO, *_SHORT, "evaluation.final_episodes=400", "stop.env_steps=80000"),
        0,
        0.58,
        policy="walker",
        is_control=True,
    ),
)

# A reference that is understood in about half of its episodes, then a policy near it, with the same listener, frozen.
_TOKEN_EXPERIMENT = (
    "experiment=token_signal_ppo_dqn",
    "evaluation.final_episodes=400",
    "checkpoint.every_env_steps=null",
)
_REFERENCE = "runs/team_bars/token_signal_reference/${seed}"
_TOKENS = (
    "env=token_signal",
    *learns_with(
        "ppo",
        "speaker",
        batch_agent_steps=1_000,
        minibatch_agent_steps=250,
        epochs=4,
        learning_rate="{_target_: marlflow.Linear, start: 1e-3, end: 1e-5, agent_steps: 16000}",
        discount=1.0,
        entropy_coefficient=0.0,
        parts="{values: {_target_: marlflow.PopArt}}",
    ),
    "model@policies.speaker.model=transformer",
    f"policies.speaker.init={{run: '{_REFERENCE}', parts: [actor]}}",
    "policy@policies.listener=frozen",
    f"policies.listener.algorithm.run='{_REFERENCE}'",
    "checkpoint.every_env_steps=null",
    "evaluation.episodes=0",
    "evaluation.final_episodes=400",
    "stop.env_steps=20000",
)
_NEAR = "policies.speaker.algorithm.parts.reference={{_target_: marlflow.KLToReference, beta: {}}}"
_TOKEN_CASES = (
    Case("token_signal", (*_TOKEN_EXPERIMENT, "stop.env_steps=40000"), 0.9, 1, policy="speaker"),
    Case(
        "token_signal_reference",
        (*_TOKEN_EXPERIMENT, "stop.env_steps=25000"),
        1 / 8,
        1,
        policy="speaker",
        is_control=True,
    ),
    Case("token_signal_beta_10", (*_TOKENS, _NEAR.format(10)), policy="speaker", count=near_reference),
    Case("token_signal_beta_half", (*_TOKENS, _NEAR.format(0.5)), policy="speaker", count=pays_for_leaving),
    Case("token_signal_beta_0", (*_TOKENS, _NEAR.format(0)), 0.9, 1, policy="speaker", count=far_from_reference),
)


def toll(run_dir: Path) -> tuple[int, str]:
    """Return the share of cars on the fast road in the final evaluation, in percent, and the multiplier in words."""
    reports = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    cost = next(report["policies"]["car"]["eval_infos"]["cost"] for report in reversed(reports) if _evaluates(report))
    loss = reports[-1]["learners"]["car"]["loss"]
    return round(100 * cost), f"{cost:.2%} took the fast road; multiplier {loss['multiplier']:.3f}"


def _evaluates(report: dict[str, Any]) -> bool:
    return report["policies"]["car"]["eval_return_mean"] is not None


# Evaluations sample actions, since the best policy is mixed; its return is 1 and the share of cars that pay.
_TOLL = ("experiment=toll_ppo_lagrangian", "stop.env_steps=120000", "checkpoint.every_env_steps=null")
_TOLL_CASES = (
    Case("toll_ppo_lagrangian", _TOLL, 1.22, 1.28, policy="car", count=toll, counted_from=22, counted_to=28),
    Case(
        "toll_ppo",
        (*_TOLL, "policies.car.algorithm.parts.cost=null"),
        1.97,
        2,
        policy="car",
        is_control=True,
    ),
)

# The settings of the experiment; its critic sees the state instead, which says nothing here.
_TOLL_MAPPO = (
    "env=toll",
    "env.num_envs=64",
    "rollouts.num_workers=1",
    "rollouts.fragment_env_steps=512",
    *learns_with(
        "mappo",
        "car",
        parts="{cost: {_target_: marlflow.CostLimit, limit: 0.25, multiplier_learning_rate: "
        "{_target_: marlflow.Linear, start: 0.06, end: 0.02, agent_steps: 200000}}}",
        normalize_advantages="false",
        entropy_coefficient="{_target_: marlflow.Linear, start: 0.3, end: 0.03, agent_steps: 150000}",
        batch_agent_steps=1_000,
        minibatch_agent_steps=1_000,
        epochs=4,
        learning_rate=1e-2,
    ),
    "policies.car.model.hidden_sizes=[8]",
    "evaluation.episodes=0",
    "evaluation.final_episodes=2000",
    "evaluation.mode=sampled",
    "checkpoint.every_env_steps=null",
    "stop.env_steps=120000",
)
# A temperature of .2 favors a share of one half, and the multiplier makes up for it: it is 1 + .2 log 3 = 1.22.
_TOLL_SAC = (
    "env=toll",
    "env.num_envs=64",
    "rollouts.num_workers=1",
    "rollouts.fragment_env_steps=128",
    *learns_with(
        "sac",
        "car",
        parts="{cost: {_target_: marlflow.CostLimit, limit: 0.25, multiplier_learning_rate: 0.03}}",
        temperature=0.2,
        learning_rate=3e-3,
        batch_agent_steps=256,
        train_every_agent_steps=64,
        learning_starts_agent_steps=1_000,
        replay_agent_steps=20_000,
    ),
    "policies.car.model.hidden_sizes=[8]",
    "evaluation.episodes=0",
    "evaluation.final_episodes=2000",
    "evaluation.mode=sampled",
    "checkpoint.every_env_steps=null",
    "stop.env_steps=40000",
)
_NO_LIMIT = "policies.car.algorithm.parts.cost=null"
_TOLL_CASES += (
    Case("toll_mappo_lagrangian", _TOLL_MAPPO, 1.22, 1.28, policy="car", count=toll, counted_from=22, counted_to=28),
    Case("toll_mappo", (*_TOLL_MAPPO, _NO_LIMIT), 1.97, 2, policy="car", is_control=True),
    Case("toll_sac_lagrangian", _TOLL_SAC, 1.22, 1.28, policy="car", count=toll, counted_from=22, counted_to=28),
    # The temperature alone: 1 / (1 + exp(-1 / .2)) of the cars take the fast road.
    Case("toll_sac", (*_TOLL_SAC, _NO_LIMIT), 1.97, 2, policy="car", is_control=True),
)

# Bisection has -1.625, the best that does not listen -2.75, and the nearest other strategies -1.75.
_GUESSING = (
    "env=guess_number",
    "env.num_envs=16",
    "rollouts.num_workers=1",
    "rollouts.fragment_env_steps=256",
    "checkpoint.every_env_steps=null",
    "evaluation.episodes=0",
    "evaluation.final_episodes=1000",
    "stop.env_steps=60000",
)
_LESS_RANDOM = "{_target_: marlflow.Linear, start: 0.05, end: 0.0, agent_steps: 60000}"
_GUESSING_CASES = (
    Case(
        "guess_number_archer",
        (*_GUESSING, *learns_with("archer", "guesser", entropy_coefficient=_LESS_RANDOM)),
        -1.7,
        0,
        policy="guesser",
    ),
    # The actor alone: its returns, token by token, and a critic of tokens; the same env steps.
    Case(
        "guess_number_a2c",
        (
            *_GUESSING,
            *learns_with(
                "a2c",
                "guesser",
                batch_agent_steps=250,
                learning_rate=2e-3,
                discount=0.983,
                entropy_coefficient=_LESS_RANDOM,
            ),
        ),
        high=-1.7,
        policy="guesser",
        is_control=True,
    ),
)

_ALL = (*_CLIFF_CASES, *_AUTOMATON_CASES, *_SIGN_CASES, *_TOKEN_CASES, *_TOLL_CASES, *_GUESSING_CASES)
CASES = {case.name: case for case in _ALL}
