"""Checkpoints of leagues that were never run: a league's state, its members' parameters, and what describes them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from marlflow.base.serialization import to_bytes
from marlflow.league.dealing import LeagueMatchmaker
from marlflow.league.payoffs import Payoffs
from marlflow.runs.checkpoints import CheckpointStore
from tests.league.population import add_games, matchmaker_of, members_of

FLAT = np.arange(6, dtype=np.float32)


def played() -> LeagueMatchmaker:
    """A live policy with two snapshots, and random: 30 training games of each pair in each seating, and ratings."""
    members = members_of({"main": 0})
    for number in (1, 2):
        members.add("main", version=10 * number, env_steps=1_000 * number, agent_steps=900 * number)
    matchmaker = matchmaker_of(members)
    names = ["main", "main@2", "main@1", "random"]
    for place, better in enumerate(names):
        for worse in names[place + 1 :]:
            add_games(matchmaker.payoffs, better, worse, wins=20, losses=10)
            add_games(matchmaker.payoffs, worse, better, wins=10, losses=20)
            matchmaker.games += 60
            for _ in range(5):
                matchmaker.ratings.add([[better], [worse]], scores=[1.0, 0.0])
    matchmaker.epoch = 2
    return matchmaker


def state_of(matchmaker: LeagueMatchmaker, matches: Payoffs | None = None) -> dict[str, Any]:
    state: dict[str, Any] = {**matchmaker.state(), "env_steps": 3_000}
    return state if matches is None else {**state, "matches": {"payoffs": matches.state()}}


def identity_of(learners: Mapping[str, list[str]]) -> dict[str, Any]:
    about = {
        "algorithm": "ppo",
        "model": "MLP((8,))",
        "observes": "Box(0.0, 1.0, (3,), float32)",
        "acts": "Discrete(2)",
    }
    policies = {policy: about for members in learners.values() for policy in members}
    scripted = {"random": {**about, "algorithm": "random", "model": "None"}}
    return {
        "policies": {**policies, **scripted},
        "learners": {name: {"policies": members, "algorithm": "ppo"} for name, members in learners.items()},
    }


def write_checkpoint(
    run_dir: Path,
    dealer: Any,
    learners: Mapping[str, list[str]] | None = None,
    env_steps: int = 3_000,
    files: Mapping[str, bytes] | None = None,
) -> Path:
    """Write a checkpoint with this state of the dealer, two frozen versions of main and its live one, version 30."""
    learners = learners or {"main": ["main"]}
    frozen = {
        f"frozen.main@{number}": to_bytes(
            {"policy": "main", "version": 10 * number, "scheduled": {"epsilon": 0.5}, "flat": FLAT + number}
        )
        for number in (1, 2)
    }
    learner = to_bytes({"version": 30, "published": FLAT, "vector": FLAT + 0.5})
    totals = {"main": {"agent_steps_sampled": 2_700}}
    content = {
        "driver": to_bytes({"tally": {"policies": totals}, **({} if dealer is None else {"dealer": dealer})}),
        **{f"learner.{name}": learner for name in learners},
        **frozen,
        **(files or {}),
    }
    notes = {"run": "0123456789abcdef", "identity": identity_of(learners), "replay": "rows", "reports": 0}
    notes["recorded"] = {}
    return CheckpointStore(run_dir / "checkpoints", keep=2).write(env_steps, content, [], notes, None)


def write_league(run_dir: Path, matches: Payoffs | None = None) -> Path:
    """Write a run with the league `played`."""
    run_dir.mkdir(exist_ok=True)
    return write_checkpoint(run_dir, {"matchmaker": state_of(played(), matches)})
