"""Matchups dealt to one worker at a time: random orders of arrival, lost workers, changes of the population, resets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from marlflow.batches.items import Weights
from marlflow.matchmaking.dealer import Dealer
from marlflow.matchmaking.matchmakers import AllowedSeats, EpisodeId, Matchmaker
from marlflow.sampling.population import PopulationChange, Reset
from marlflow.sampling.protocol import Matchup, Request
from marlflow.sampling.receipts import EpisodeResult, Receipt

AGENTS = ("left", "right")
WORKERS = ((0, 2), (1, 3))
NUM_ENVS = 4


@dataclass
class Newest(Matchmaker):
    """Seats `main`, or `other` in odd environments, against the newest frozen entry; the test says when to change."""

    freeze: bool = True
    reset: bool = False
    entries: list[str] = field(default_factory=list)
    seen: list[tuple[int, int]] = field(default_factory=list)

    def __call__(self, episode: EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> Mapping[str, str]:
        return {"left": ("main", "other")[episode.env % 2], "right": self.entries[-1]}

    def change_population(self, published: Mapping[str, int], agent_steps: Mapping[str, int]) -> PopulationChange:
        if not self.freeze:
            return PopulationChange()
        self.freeze, forget = False, self.entries[-1:]
        self.entries.append(f"main@{len(self.entries)}")
        return PopulationChange({self.entries[-1]: "main"}, forget)

    def reset_policies(self) -> Sequence[str]:
        return ["main"]

    def resets(self) -> Sequence[Reset]:
        resets, self.reset = [Reset("main", "initial")] * self.reset, False
        return resets

    def observe(self, results: Sequence[EpisodeResult]) -> None:
        self.seen += [(result.env, result.episode) for result in results]


class SimulatedWorker:
    """Plays dealt matchups: a reference for episodes that begin, run and end, and for held entries."""

    def __init__(self, envs: Sequence[int]) -> None:
        self.envs = envs
        self.table: set[str] = set()
        self.following = dict.fromkeys(envs, 0)
        self.running: dict[int, tuple[int, Matchup]] = {}
        self.request: Request | None = None

    def start(self, request: Request) -> None:
        assert request.matchups is not None
        assert sorted(request.matchups) == sorted(self.envs)
        seated = {name for _, matchup in self.running.values() for name in matchup.values()}
        assert not set(request.forget) & set(request.frozen)
        self.table -= set(request.forget) - seated
        self.table |= set(request.frozen)
        self.request = request

    def deliver(self, ends: Sequence[int]) -> tuple[Receipt, list[EpisodeResult]]:
        assert self.request is not None
        assert self.request.matchups is not None
        results = []
        for env, ended in zip(self.envs, ends, strict=True):
            matchups = list(self.request.matchups[env])
            for tick in range(ended + 1):
                if tick and env in self.running:
                    episode, matchup = self.running.pop(env)
                    results.append(EpisodeResult(env, episode, 3, dict.fromkeys(AGENTS, 0.0), tick, matchup))
                if env not in self.running and matchups:
                    self.running[env] = (self.following[env], matchups.pop(0))
                    self.following[env] += 1
                    assert set(self.running[env][1].values()) - {"main", "other"} <= self.table
        self.request = None
        receipt = Receipt(0, 4, 8, tuple(results), {}, 0, 0.0, 0.0, 0.0, dict(self.following))
        return receipt, sorted(results, key=lambda result: (result.tick, result.env))

    def lose(self) -> None:
        """A successor begins after the delivered episodes, and holds no entry."""
        self.request, self.running, self.table = None, {}, set()


class Simulation:
    """A dealer with two workers; `expected` has the results that count, in the order of their delivery."""

    def __init__(self) -> None:
        self.matchmaker = Newest()
        seats = AllowedSeats(AGENTS, dict.fromkeys(("main", "other"), AGENTS))
        self.dealer = Dealer(self.matchmaker, seats, NUM_ENVS, 1, WORKERS, worker_members=0)
        self.workers = [SimulatedWorker(envs) for envs in WORKERS]
        self.expected: list[tuple[int, int]] = []
        # By environment: the newest episode that a reset has made stale.
        self.expired: dict[int, int] = {}
        self.renew()

    def renew(self) -> None:
        self.dealer.renew(dict.fromkeys(("main", "other"), Weights(0, None)), {}, {})

    def freeze(self) -> None:
        self.matchmaker.freeze = True
        self.renew()

    def reset(self, ends: Sequence[int]) -> None:
        """The run waits for workers that are under way, and then resets: whatever they began is of before."""
        self.matchmaker.reset = True
        self.renew()
        for worker in self.workers:
            if worker.request is not None:
                receipt, results = worker.deliver(ends)
                self.dealer.record_receipts([receipt])
                self.expected += [(one.env, one.episode) for one in results if "main" not in one.matchup.values()]
        self.dealer.end_round()
        for worker in self.workers:
            running = worker.running.items()
            self.expired |= {env: episode for env, (episode, matchup) in running if "main" in matchup.values()}

    def start(self, worker: SimulatedWorker) -> None:
        request = self.dealer.with_matchups(Request(0, {}, {}), 2, worker.envs)
        assert request.matchups is not None
        dealt = [matchup for of_env in request.matchups.values() for matchup in of_env]
        assert all(matchup["right"] == self.matchmaker.entries[-1] for matchup in dealt), "dealt before a change"
        worker.start(request)

    def deliver(self, worker: SimulatedWorker, ends: Sequence[int]) -> None:
        receipt, results = worker.deliver(ends)
        self.dealer.record_receipts([receipt])
        counted = [one for one in results if one.episode > self.expired.get(one.env, -1)]
        self.expected += [(one.env, one.episode) for one in counted]

    def round(self, worker: SimulatedWorker, ends: Sequence[int]) -> None:
        if worker.request is None:
            self.start(worker)
        else:
            self.deliver(worker, ends)


what = st.sampled_from(["round", "round", "round", "lose", "freeze", "reset"])
steps = st.lists(st.tuples(what, st.integers(0, 1), st.integers(0, 2), st.integers(0, 2)), max_size=40)


@given(steps)
def test_whoever_delivers_first_each_game_is_as_it_was_dealt_and_counts_once(drawn: list[Any]) -> None:
    simulation = Simulation()
    for kind, number, *ends in drawn:
        worker = simulation.workers[number]
        match kind:
            case "lose":
                worker.lose()
            case "freeze":
                simulation.freeze()
            case "reset":
                simulation.reset(ends)
            case _:
                simulation.round(worker, ends)
    assert simulation.matchmaker.seen == simulation.expected
    # The next request to each worker makes it forget all entries except the seated ones.
    for worker in simulation.workers:
        if worker.request is not None:
            simulation.deliver(worker, (0, 0))
        simulation.start(worker)
        seated = {name for _, matchup in worker.running.values() for name in matchup.values()}
        assert worker.table <= {*seated, simulation.matchmaker.entries[-1]}
