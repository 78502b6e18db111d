"""Checks that hold for a run in which any process was killed, by the journals of its processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from marlflow.algorithms.dqn import DQN
from marlflow.base.random import episode_seed
from tests.runtime.ray.chaos_parts import entries

ON_POLICY, OFF_POLICY = "hunters", "prey"


@dataclass(frozen=True)
class Evidence:
    """A run that has ended: its journals, the last metrics record, the processes that were killed, and its settings."""

    folder: Path
    metrics: Mapping[str, Any]
    killed: Sequence[int]
    seed: int
    num_envs: int
    dqn: DQN

    def noted(self, part: str, what: str) -> list[tuple[int, Any]]:
        """The notes of all processes, each with its process."""
        return [(process, entry[what]) for process, entry in entries(self.folder, part) if what in entry]


def violations(evidence: Evidence) -> list[str]:
    """One sentence for each thing that is not as it has to be."""
    return [said for check in CHECKS for said in check(evidence)]


def losses_are_counted(evidence: Evidence) -> Iterator[str]:
    """Once for each process that was killed, and for nothing else."""
    for kind, part in {"workers_lost": "worker", "learners_lost": "learner-*", "replays_lost": "replay-*"}.items():
        were = {int(path.suffix[1:]) for path in evidence.folder.glob(f"{part}.*")}
        killed, counted = len(were & set(evidence.killed)), evidence.metrics["faults"][kind]
        if counted != killed:
            yield f"{killed} were killed, and {kind} is {counted}"


def rows_are_used_once(evidence: Evidence) -> Iterator[str]:
    """None is inserted twice into a replay, by whichever process, nor enters two batches that are then forgotten."""
    for part, what in ((f"replay-{OFF_POLICY}", "inserted"), (f"learner-{ON_POLICY}", "trained")):
        yield from _twice(_flat(evidence, part, what), f"{part}: row {{}} was {what} {{}} times")


def rows_were_played(evidence: Evidence) -> Iterator[str]:
    """Every row that was trained on or stored is a decision that some worker took."""
    played: dict[int, set[tuple[int, int]]] = {}
    for _, step in entries(evidence.folder, "worker"):
        played.setdefault(step["seed"], set()).update((agent, step["t"]) for agent in step["acted"])
    used = {*_flat(evidence, f"replay-{OFF_POLICY}", "inserted"), *_flat(evidence, f"learner-{ON_POLICY}", "trained")}
    for env_index, episode, agent, t_agent in sorted(used):
        if (agent, t_agent) not in played.get(episode_seed(evidence.seed, env_index, episode), ()):
            yield f"decision {t_agent} of agent {agent} in episode {episode} of env {env_index} was never taken"


def draws_are_of_what_is_held(evidence: Evidence) -> Iterator[str]:
    """A replay hands out only rows of its own life, and a learner learns only from what was handed out."""
    lives: dict[int, range] = {}
    drawn = set()
    for process, entry in entries(evidence.folder, f"replay-{OFF_POLICY}"):
        life = lives.setdefault(process, range(entry.get("begins", 0), entry.get("begins", 0)))
        if "inserted" in entry:
            lives[process] = range(life.start, life.stop + len(entry["inserted"]))
        for number in entry.get("drawn", ()):
            drawn.add(number)
            if number not in life:
                yield f"row {number} was drawn from a replay that held {life}"
    numbers = sorted(lives.values(), key=lambda life: life.start)
    yield from (f"rows {a} and {b} overlap" for a, b in pairwise(numbers) if a.stop > b.start)
    trained = [number for _, numbers in evidence.noted(f"learner-{OFF_POLICY}", "drawn") for number in numbers]
    yield from (f"row {number} was trained on, and never drawn" for number in sorted(set(trained) - drawn))


def versions_never_repeat(evidence: Evidence) -> Iterator[str]:
    """Each names one vector of weights, and every row was sampled with published weights."""
    for policy in (ON_POLICY, OFF_POLICY):
        published = [version for _, version in evidence.noted(f"learner-{policy}", "published")]
        yield from _twice(published, f"{policy}: version {{}} was published {{}} times")
    published = [0, *(version for _, version in evidence.noted(f"learner-{ON_POLICY}", "published"))]
    sampled = {version for _, versions in evidence.noted(f"learner-{ON_POLICY}", "versions") for version in versions}
    yield from (f"version {version} acted, and was never published" for version in sorted(sampled - set(published)))


def updates_were_earned(evidence: Evidence) -> Iterator[str]:
    """By rows that were inserted, in each life of the replay beyond those that have to come before any is drawn."""
    inserted: Counter[int] = Counter()
    for process, rows in evidence.noted(f"replay-{OFF_POLICY}", "inserted"):
        inserted[process] += len(rows)
    beyond = sum(max(0, rows - evidence.dqn.learning_starts_agent_steps) for rows in inserted.values())
    earned, made = beyond // evidence.dqn.train_every_agent_steps, evidence.metrics["learners"][OFF_POLICY]["updates"]
    if made > earned:
        yield f"{made} updates were made, and {earned} were earned, by {sorted(inserted.values())} rows"


def rows_are_accounted_for(evidence: Evidence) -> Iterator[str]:
    """What was delivered was stored, or it is counted as lost; so is what a replay that was killed had stored."""
    delivered = evidence.metrics["policies"][OFF_POLICY]["agent_steps_sampled"]
    stored = len(_flat(evidence, f"replay-{OFF_POLICY}", "inserted"))
    lost = evidence.metrics["faults"]["rows_lost"]
    if not stored <= delivered <= stored + lost:
        yield f"{delivered} rows were delivered, {stored} stored, and {lost} counted as lost"
    lives: Counter[int] = Counter()
    for process, rows in evidence.noted(f"replay-{OFF_POLICY}", "inserted"):
        lives[process] += len(rows)
    gone = [lives[process] for process in evidence.killed if lives[process] < evidence.dqn.replay_agent_steps]
    if lost < sum(gone):
        yield f"replays that were killed held {gone} rows, and {lost} are counted as lost"


CHECKS: tuple[Callable[[Evidence], Iterable[str]], ...] = (
    losses_are_counted,
    rows_are_used_once,
    rows_were_played,
    draws_are_of_what_is_held,
    versions_never_repeat,
    updates_were_earned,
    rows_are_accounted_for,
)


def _flat(evidence: Evidence, part: str, what: str) -> list[tuple[int, ...]]:
    return [tuple(row) for _, rows in evidence.noted(part, what) for row in rows]


def _twice(found: Iterable[Any], text: str) -> Iterator[str]:
    for one, times in sorted(Counter(found).items()):
        if times > 1:
            yield text.format(one, times)
