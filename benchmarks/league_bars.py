"""The bars of a league besides the cost of acting: what snapshots cost in messages, files, memory and dealing.

    python -m benchmarks.league_bars [messages] [dealing] [checkpoint] [population] [matrix]

Each prints its figures and bars; CPU time excludes other programs. `population` measures the memory of its process, so
it runs in a new one.
"""

from __future__ import annotations

import argparse
import asyncio
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import psutil

from marlflow.algorithms.ppo import PPO
from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.batches.items import Weights
from marlflow.checks.validation import ready
from marlflow.config.experiment import CheckpointConfig, Env, Evaluation, Experiment, Log, Policy, Rollouts, Stop
from marlflow.config.league import league_matchmaker
from marlflow.driver.stored_members import StoredMembers
from marlflow.driver.train import train
from marlflow.env.simulators import openspiel
from marlflow.league import PFSP, Fictitious, League, MatchRules, SnapshotRules
from marlflow.league.dealing import LeagueMatchmaker
from marlflow.league.matches import play_matches
from marlflow.league.sides import default_sides
from marlflow.matchmaking.dealer import Dealer, DealtWorkers
from marlflow.matchmaking.matchmakers import AllowedSeats
from marlflow.policy.torso import MLP
from marlflow.runs.checkpoints import CheckpointStore
from marlflow.runs.saved_policies import frozen_file
from marlflow.runtime.inline import InlineRuntime
from marlflow.runtime.ray.remote_worker import RemoteWorker, SharedRequest
from marlflow.runtime.stage_chain import InlinePlace
from marlflow.sampling.protocol import Assign, EvaluationRequest, Request, Round, Workers
from marlflow.sampling.receipts import Evaluated

AGENTS = ("player_0", "player_1")
SNAPSHOTS = SnapshotRules(every_agent_steps=1)
PARAMETERS = 10_000
MiB = 2**20


def verdict(name: str, found: float, bar: float, unit: str) -> None:
    """Print a figure, which is to be at most its bar."""
    print(f"{name}: {found:,.3g} {unit}, at most {bar:,.3g}: {'reached' if found <= bar else 'MISSED'}", flush=True)


def dealer_of(store: StoredMembers | None = None, league: League | None = None, num_envs: int = 64) -> Dealer:
    """Return the dealer of a league of one policy, with two workers."""
    league = league or League(Fictitious(), snapshots=SNAPSHOTS)
    fits = {"main": AGENTS, "random": AGENTS}
    matchmaker = league_matchmaker(league, default_sides(AGENTS), fits, ["main"], 0)
    workers = [range(worker, num_envs, 2) for worker in range(2)]
    return Dealer(matchmaker, AllowedSeats(AGENTS, fits), num_envs, 0, workers, store)


def take_snapshots(dealer: Dealer, count: int, parameters: int = PARAMETERS) -> None:
    """Freeze `count` published versions, each with parameters of its own."""
    league = dealer.matchmaker
    assert isinstance(league, LeagueMatchmaker)
    for number in range(len(league.members.snapshots), len(league.members.snapshots) + count):
        weights = {"main": Weights(number, np.full(parameters, number, np.float32))}
        dealer.renew(weights, {"main": {}}, {"main": number})


class Sent:
    """In place of a worker's process: counts the entries and the bytes of messages, without parameters."""

    def __init__(self) -> None:
        self.entries = self.bytes = 0

    def remote(self, headers: Any, schedules: Any, matchups: Any, forget: Any, reset: Any, *flats: Any) -> list[Any]:
        """Count a request."""
        self.entries += len(headers.frozen)
        self.bytes += len(pickle.dumps(headers.frozen))
        return []


def kuhn(num_envs: int, league: League, **changes: Any) -> Experiment:
    """Return a run of Kuhn poker with one PPO policy."""
    settings: dict[str, Any] = {
        "env": Env(openspiel.env, {"game": "kuhn_poker"}, num_envs=num_envs),
        "policies": {"main": Policy(PPO(batch_agent_steps=2_000, minibatch_agent_steps=500), MLP((64, 64)))},
        "league": league,
        "rollouts": Rollouts(num_workers=1, fragment_env_steps=800),
        "evaluation": Evaluation(episodes=0),
        "checkpoint": CheckpointConfig(every_env_steps=None),
        "log": Log(console="none", jsonl=False, tensorboard=False),
    }
    return Experiment(**{**settings, **changes})


def messages() -> None:
    """Print the bytes that a new snapshot, and rounds without a new one, cost each worker."""
    none: Any = None
    spec = ready(kuhn(64, League(), rollouts=Rollouts(num_workers=2))).spec
    dealer = dealer_of()
    workers = [RemoteWorker(spec, number, none, none, none) for number in range(2)]
    sent = [Sent() for _ in workers]
    for worker, counter in zip(workers, sent, strict=True):
        worker._collect = counter

    def rounds(count: int) -> tuple[int, int]:
        for counter in sent:
            counter.entries = counter.bytes = 0
        for number in range(count):
            for worker in workers:
                request = Request(number, {}, {})
                dealt = dealer.with_matchups(request, 2_000, worker.env_indices)
                worker.collect(dealt, SharedRequest(request))
            dealer.end_round()
        return sum(counter.entries for counter in sent), max(counter.bytes for counter in sent)

    take_snapshots(dealer, 40)
    rounds(1)
    _, empty = rounds(1)
    entries, _ = rounds(50)
    verdict("members sent in 50 steady rounds", entries, 0, "members")
    take_snapshots(dealer, 1)
    entries, header = rounds(1)
    assert entries == 2, "the new one, to both workers"
    verdict("message of a new snapshot to a worker", header - empty, 1_000, "bytes")
    flat = np.zeros(PARAMETERS, np.float32)
    verdict("parameters, once a machine", flat.nbytes / PARAMETERS, 4, "bytes each")
    frozen = dealer.entries["main@1"].weights
    print(f"messages to learners: 0 (a snapshot is the published version {frozen.version} itself)", flush=True)


def dealing() -> None:
    """Print the share of a run's time that the driver deals and counts results."""
    league = League(PFSP(), snapshots=SnapshotRules(every_agent_steps=2_000), matches=MatchRules(every_env_steps=None))
    with tempfile.TemporaryDirectory() as folder:
        began = perf_counter()
        metrics = train(kuhn(64, league, stop=Stop(env_steps=40_000)), Path(folder) / "run").metrics
        wall_s = perf_counter() - began
    of_league = metrics["league"]
    assert of_league is not None
    print(f"{of_league['games']:,} games against {of_league['members']} members in {wall_s:.1f} s", flush=True)
    verdict(
        "dealing and scoring", (of_league["deal_s"] + of_league["score_s"]) / metrics["time_s"], 0.05, "of the time"
    )


def _written(store: CheckpointStore, dealer: Dealer, members: StoredMembers, env_steps: int, old: Sequence[str]) -> int:
    """Write a checkpoint of a league; return the bytes of all files of the folder's parent, each counted once."""
    contents = {frozen_file(entry): content for entry, content in members.contents().items()}
    files: dict[str, bytes | Path] = {name: content for name, content in contents.items() if name not in old}
    files["driver"] = to_bytes(dealer.state())
    path = store.write(env_steps, files, list(old), {}, None)
    files_on_disk = {file.stat().st_ino: file.stat().st_size for file in path.parents[1].rglob("*") if file.is_file()}
    return sum(files_on_disk.values())


def checkpoint() -> None:
    """Print by how much a run's folder grows for each snapshot."""
    with tempfile.TemporaryDirectory() as folder:
        members = StoredMembers(Path(folder) / "members", InlinePlace(), 256 * MiB)
        dealer, store = dealer_of(members), CheckpointStore(Path(folder) / "checkpoints", keep=2)
        sizes, old, count = [], [], 100
        for number in range(4):
            take_snapshots(dealer, count)
            sizes.append(_written(store, dealer, members, number, old))
            old = [frozen_file(entry) for entry in members]
        growth = (sizes[-1] - sizes[-2]) / count
        verdict("growth of the folder for a snapshot, without its parameters", growth - 4 * PARAMETERS, 4_000, "bytes")


def population() -> None:
    """Print what 2,000 members of 10,000 parameters take: to be frozen, to be resumed, and of memory."""
    subprocess.run([sys.executable, "-m", "benchmarks.league_bars", "_population"], check=True)


def _population() -> None:
    count, process = 2_000, psutil.Process()
    with tempfile.TemporaryDirectory() as folder:
        members = StoredMembers(Path(folder) / "members", InlinePlace(), 256 * MiB)
        dealer, store = dealer_of(members), CheckpointStore(Path(folder) / "checkpoints", keep=2)
        take_snapshots(dealer, 2)
        before = process.memory_info().rss
        began = process_time()
        take_snapshots(dealer, count)
        verdict(f"{count:,} members frozen", process_time() - began, 1, "s of CPU time")
        for worker in range(2):
            dealer.with_matchups(Request(0, {}, {}), 800, range(worker, 64, 2))
        verdict("driver's memory", (process.memory_info().rss - before) / MiB, 256, "MiB")
        began = perf_counter()
        _written(store, dealer, members, 1, [])
        print(f"their checkpoint: {perf_counter() - began:.2f} s", flush=True)
        began = process_time()
        saved = store.load()
        resumed = StoredMembers(Path(folder) / "members", InlinePlace(), 256 * MiB)
        resumed.restore(saved)
        dealer_of(resumed).load_state(from_bytes(saved.read("driver")))
        verdict(f"{count:,} members resumed", process_time() - began, 5, "s of CPU time")


class CountedWorkers:
    """Workers that count the calls of `evaluate`."""

    def __init__(self, workers: Workers) -> None:
        self._workers, self.calls = workers, 0
        self.under_way = 0

    async def collect(self, request: Request, assign: Assign | None = None) -> Round:
        """Collect."""
        return await self._workers.collect(request, assign)

    async def collect_next(self, request: Request | None, assign: Assign | None = None) -> Round:
        """Collect from one worker."""
        return await self._workers.collect_next(request, assign)

    async def evaluate(self, request: EvaluationRequest) -> Evaluated:
        """Count, and evaluate."""
        self.calls += 1
        return await self._workers.evaluate(request)


def matrix() -> None:
    """Print the calls and the time for a payoff matrix of 50 x 50 members of Kuhn poker, 20 games a cell."""
    league = League(Fictitious(), snapshots=SNAPSHOTS)
    spec, runtime = ready(kuhn(16, league)).spec, InlineRuntime()
    try:
        counted = CountedWorkers(runtime.start(spec).workers)
        dealer = dealer_of(league=league, num_envs=16)
        take_snapshots(dealer, 50, parameters=len(spec.policies["main"].actor().flat()))  # type: ignore[attr-defined]
        matchmaker: Any = dealer.matchmaker
        names = list(matchmaker.members.snapshots)
        matchmaker.matches.request({(one, other): 20 for one in names for other in names})
        began = perf_counter()
        asyncio.run(play_matches(_OneBatch(matchmaker), DealtWorkers(counted, dealer, 50), {}))
        seconds = perf_counter() - began
        cells = [cell.games for cell in matchmaker.matches.payoffs.cells.values()]
        assert (len(cells), set(cells)) == (2_500, {20})
        print(f"{sum(cells):,} games in {seconds:.1f} s", flush=True)
        verdict("calls for 2,500 cells", counted.calls, 1, "call of each worker")
    finally:
        runtime.close()


class _OneBatch:
    """The requested matches, without the matches of the league's rules."""

    def __init__(self, matchmaker: Any) -> None:
        self.matches_due, self.observe_matches = matchmaker.matches.due, matchmaker.matches.observe


BARS: Mapping[str, Callable[[], None]] = {
    "messages": messages,
    "dealing": dealing,
    "checkpoint": checkpoint,
    "population": population,
    "matrix": matrix,
}


def main(arguments: Sequence[str] = ()) -> None:
    """Print all bars, or only the named ones."""
    if list(arguments) == ["_population"]:
        _population()
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bars", nargs="*", choices=[*BARS, []], help="which; none: all")
    for name in parser.parse_args(arguments).bars or BARS:
        BARS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
