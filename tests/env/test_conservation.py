"""Nothing an environment shows, is told or issues is lost, doubled or given to another: on every shipped environment.

Rewards are compared as fractions, so that "the same" means the same. Each agent has a policy of its own, because what
belongs to no row is reported by policy.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from pettingzoo.utils.conversions import parallel_to_aec

from marlflow import conf
from marlflow.base.random import episode_seed
from marlflow.config.environment import environment_maker
from marlflow.env.batched.single import as_pettingzoo
from marlflow.env.games import matrix_games, recall, relay, sacrifice
from marlflow.policy.actor import Acted
from marlflow.policy.scripted import RandomActor
from tests.config.composition import experiment_of
from tests.env.optional import is_installed
from tests.env.watched import digest, exact, in_turn, watched
from tests.sampling.workers import rollout_worker

SEED = 11
# Nobody plays in what is offline: it is made of records.
SHIPPED = sorted(
    path.stem
    for path in (Path(conf.__path__[0]) / "env").glob("*.yaml")
    if path.stem != "offline" and is_installed(path.stem)
)


@dataclass(frozen=True)
class Played:
    """What makes an environment's episodes short, in which envs and collects (env steps) it is played, and how many
    episodes must have ended by then.
    """

    overrides: tuple[str, ...] = ()
    env_indices: tuple[int, ...] = (0, 3)
    collects: tuple[int, ...] = (40, 1, 64, 25)
    episodes: int = 3


# The environments whose episodes as configured are too long, or which have to be told what to play.
PLAYED = {
    "chess": Played(env_indices=(0,), collects=(200, 1, 250, 100), episodes=1),
    "cooperative_pong": Played(("env.max_cycles=40", "env.render_ratio=8"), collects=(30, 1, 50, 45)),
    "functional": Played(("env.make=tests.env.functional_games.HotPotato", "env.max_env_steps=25")),
    "go": Played(("env.board_size=5",)),
    "gymnasium_team": Played(("env.id=tests.env.tuple_game:TupleGame-v0", "+env.arguments.alike=true")),
    "jumanji": Played(("env.max_env_steps=15",)),
    "knights_archers_zombies": Played(("env.max_cycles=60", "env.line_death=true"), collects=(50, 1, 80, 60)),
    "pendulum_team": Played(("env.max_cycles=20",)),
    "pettingzoo": Played(("env.id=classic/tictactoe-v3",)),
    "pistonball": Played(("env.n_pistons=5", "env.max_cycles=9"), collects=(6, 1, 15)),
    "pursuit": Played(("env.max_cycles=15", "env.n_evaders=5"), collects=(20, 1, 30)),
    "rware": Played(("env.max_cycles=30",)),
    "vmas": Played(("env.max_env_steps=20",)),
    "python": Played(("env._target_=marlflow.env.games.cartpole_team.env",), collects=(70, 1, 200, 90)),
}
# Where each player's gain is the others' loss.
ZERO_SUM = {
    *(
        "chess",
        "connect_four",
        "go",
        "leduc_holdem",
        "openspiel",
        "pgx",
        "rps",
        "texas_holdem",
        "texas_holdem_no_limit",
    ),
    "tictactoe",
}
# All that stands in conf/wrappers, each on an environment that it is meant for.
WRAPPED = {
    "cartpole_team": ("named_agents", "flatten_actions", "reward_scale", "last_action"),
    "connect_four": ("random_opening", "mask_in_info", "agent_indicator", "joint_state", "reward_scale"),
    "cooperative_pong": ("pixels",),
    "knights_archers_zombies": ("clip_observations", "black_death", "joint_state"),
    "simple_world_comm": ("padding", "agent_indicator", "widen_bounds"),
}


@dataclass
class Outcome:
    """What the environment wrote down, by (environment, episode), and what the worker handed over."""

    agents: list[str]
    episodes: dict
    results: dict = field(default_factory=dict)
    rows: dict = field(default_factory=lambda: defaultdict(list))  # by (environment, episode, agent)
    segments: dict = field(default_factory=lambda: defaultdict(list))
    unattributed: dict = field(default_factory=lambda: defaultdict(Fraction))
    vanished: int = 0

    @property
    def finished(self):
        return {place: episode for place, episode in self.episodes.items() if episode.over}


def play(make_env, env_indices, collects, actors=None):
    journal = {}
    env = as_pettingzoo(make_env())
    agents = list(env.possible_agents)
    actors = actors or {agent: RandomActor(env.action_space(agent)) for agent in agents}
    env.close()
    worker = rollout_worker(
        lambda: watched(as_pettingzoo(make_env()), journal), env_indices, {a: a for a in agents}, actors, SEED
    )
    outcome = Outcome(agents, {})
    for ticks in collects:
        receipt, batches = worker.collect(ticks)
        outcome.vanished += receipt.agents_vanished
        outcome.results |= {(result.env, result.episode): result for result in receipt.episodes}
        for agent, batch in batches.items():
            outcome.unattributed[agent] += Fraction(receipt.policies[agent].reward_unattributed)
            take(outcome, agent, batch)
    worker.close()
    places = [(env_index, episode) for env_index in env_indices for episode in range(sum(collects) + 1)]
    seeds = {place: episode_seed(SEED, *place) for place in places}
    outcome.episodes = {place: journal[seed] for place, seed in seeds.items() if seed in journal}
    return outcome


def take(outcome, agent, batch):
    """Sorts the rows and segments of a batch by episode."""
    stop = 0
    for number, length in enumerate(batch.segments["length"]):
        segment = {name: column[number] for name, column in batch.segments.items()}
        assert outcome.agents[segment["agent"]] == agent
        place = (int(segment["env"]), int(segment["episode"]), agent)
        outcome.segments[place].append(segment)
        for index in range(stop, stop + length):
            outcome.rows[place].append({name: column[index] for name, column in batch.columns.items()})
        stop += length


def assert_conserved(outcome):
    """Rows and what belongs to none come to what was issued: per episode and agent, and over all."""
    unattributed = defaultdict(Fraction)
    for place, episode in outcome.episodes.items():
        for agent, account in episode.accounts.items():
            unattributed[agent] += exact(account.unattributed)
            rows = outcome.rows[(*place, agent)]
            assert [row["reward"] for row in rows] == [in_turn(d.issued) for d in account.decisions[: len(rows)]]
            if episode.over:
                handed_over = exact([row["reward"] for row in rows]) + exact(account.unattributed)
                assert handed_over == exact(account.issued), (place, agent)
                assert outcome.results[place].returns.get(agent, 0.0) == in_turn(account.issued)
    assert unattributed == outcome.unattributed
    assert set(outcome.results) == set(outcome.finished)


def assert_each_decision_is_a_row(outcome):
    """One row per decision, with what the environment showed and was told; one running decision may be outstanding."""
    for place, episode in outcome.episodes.items():
        for agent, account in episode.accounts.items():
            rows = outcome.rows.pop((*place, agent))
            outstanding = len(account.decisions) - len(rows)
            assert outstanding == 0 if episode.over else 0 <= outstanding <= 1
            assert [int(row["t_agent"]) for row in rows] == list(range(len(rows)))
            for row, decision in zip(rows, account.decisions, strict=False):
                assert digest(row["obs"]) == decision.shown
                np.testing.assert_array_equal(row["action"], decision.action)
                assert row["t_env"] == decision.t_env
                if decision.mask is not None:
                    assert row["action_mask"].tolist() == decision.mask
    assert not outcome.rows


def assert_ends_are_the_environments(outcome):
    """Trajectories end where and how the environment ended them, at the final observation; all other segments go on."""
    for place, episode in outcome.episodes.items():
        for agent, account in episode.accounts.items():
            ends = {end.decisions: end for end in account.ends if end.decisions}
            done = 0
            for segment in outcome.segments[(*place, agent)]:
                done += segment["length"]
                end = ends.pop(done, None)
                flags = (False, False) if end is None else (end.terminated, end.truncated and not end.terminated)
                assert (segment["terminated"], segment["truncated"]) == flags, (place, agent)
                if end is not None:
                    seen = end if end.shown is not None else account.decisions[done - 1]
                elif done < len(account.decisions):
                    seen = account.decisions[done]
                else:
                    continue
                assert digest(segment["bootstrap_obs"]) == seen.shown
                if "bootstrap_mask" in segment:
                    # Where an end has no mask, what was legal before counts.
                    masks = seen.mask, end and account.decisions[done - 1].mask, np.ones_like(segment["bootstrap_mask"])
                    legal = next(mask for mask in masks if mask is not None and any(mask))
                    assert segment["bootstrap_mask"].tolist() == list(legal)
            assert not ends


def assert_zero_sum(outcome):
    for place, episode in outcome.finished.items():
        assert sum(exact(account.issued) for account in episode.accounts.values()) == 0, place
    assert any(any(account.issued) for episode in outcome.finished.values() for account in episode.accounts.values())


def assert_exact(make_env, played, actors=None):
    outcome = play(make_env, played.env_indices, played.collects, actors)
    assert len(outcome.finished) >= played.episodes, (
        f"give it an entry in PLAYED: only {len(outcome.finished)} episodes ended"
    )
    assert outcome.vanished == 0
    assert_conserved(outcome)
    assert_ends_are_the_environments(outcome)
    assert_each_decision_is_a_row(outcome)
    return outcome


def maker(name, *overrides):
    played = PLAYED.get(name, Played())
    return environment_maker(experiment_of(f"env={name}", *played.overrides, *overrides).env), played


# What environments warn of as they are made or drawn is not marlflow's to mend.
pytestmark = pytest.mark.filterwarnings("ignore:.*WARN:UserWarning")


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_issued_shown_and_told_is_what_is_handed_over(name):
    outcome = assert_exact(*maker(name))
    if name in ZERO_SUM - {"chess"}:
        assert_zero_sum(outcome)


def test_only_shipped_environments_are_spoken_of():
    assert {name for name in PLAYED.keys() | ZERO_SUM if is_installed(name)} <= set(SHIPPED)


@pytest.mark.parametrize("name", WRAPPED)
def test_wrapped_environments_are_exact_too(name):
    assert_exact(*maker(name, f"wrappers=[{','.join(WRAPPED[name])}]"))


# Agents that die before the others, join late, or never join.
@pytest.mark.parametrize(
    "game", [matrix_games, recall, relay, sacrifice], ids=lambda game: game.__name__.split(".")[-1]
)
def test_games_of_teams_are_exact_too(game):
    assert_exact(game.parallel_env, Played())


# Wrappers that need functions or data, with an environment that has them.
GUESS = (
    "{states: 4, initial: 0, accepting: [[1], [1, 2]], sink: 3, epsilon: {0: [1, 2]}, transitions: [{from: 0, to: 0}, "
    "{from: 1, when: '!unsafe', to: 1}, {from: 1, when: unsafe, to: 3}, {from: 2, when: unsafe, to: 3}, "
    "{from: 2, when: '!unsafe & goal1', to: 1}, {from: 2, when: '!unsafe & !goal1', to: 2}]}"
)
LABELS = ("labels=marlflow.env.games.gridworld.labels", "sees=env", "noop=4")
RULED = {
    "shield": ("games.cliff", ("env.max_cycles=12",), ("safe=marlflow.env.games.cliff.stays_up",)),
    "managed": (
        "games.sign",
        (),
        ("options=2", "every=5", "manager_sees=state", "intrinsic=marlflow.env.games.sign.reached", "manager=manager"),
    ),
    "automaton": ("games.gridworld", ("env.max_cycles=20", "env.num_agents=2"), (*LABELS, f"automaton={GUESS}")),
}


@pytest.mark.parametrize(
    ("name", "api"),
    [("shield", "parallel_env"), ("shield", "env"), ("automaton", "parallel_env"), ("managed", "parallel_env")],
)
def test_wrappers_with_rules_are_exact_too(name, api):
    module, arguments, settings = RULED[name]
    own = (f"env.wrappers.{name}.{setting}" for setting in settings)
    words = ("env=python", f"env._target_=marlflow.env.{module}.{api}", *arguments, f"wrappers=[{name}]", *own)
    assert_exact(environment_maker(experiment_of(*words).env), Played(collects=(60, 1, 90, 45)))


def test_every_shipped_wrapper_is_among_them():
    shipped = {path.stem for path in (Path(conf.__path__[0]) / "wrappers").glob("*.yaml")}
    assert {wrapper for wrappers in WRAPPED.values() for wrapper in wrappers} | RULED.keys() == shipped


class Line:
    """Plays a line of moves over and over."""

    def __init__(self, *moves):
        self.moves = itertools.cycle(moves)

    def act(self, obs, action_mask, memory, mode, generator):
        (legal,), move = action_mask, next(self.moves)
        assert legal[move]
        return Acted(np.array([move]), np.zeros(1, np.float32), memory)

    def set_schedule(self, values):
        raise AssertionError("nothing is scheduled")


# Random games of chess are drawn: this is the fool's mate, f3 e5 g4 Qh4.
def test_a_won_game_of_chess_is_zero_sum():
    actors = {"player_0": Line(2997, 3589), "player_1": Line(2421, 1783)}
    outcome = assert_exact(maker("chess")[0], Played(env_indices=(0,), collects=(5, 1, 10)), actors)
    assert_zero_sum(outcome)
    assert all(result.returns == {"player_0": -1, "player_1": 1} for result in outcome.results.values())


@pytest.mark.parametrize("name", ["knights_archers_zombies", "multiwalker", "simple_tag"])
def test_the_other_kind_of_the_same_environment_is_exact_too(name):
    make, played = maker(name)
    agents = len(make().possible_agents)
    assert_exact(lambda: parallel_to_aec(make()), replace(played, collects=tuple(agents * t for t in played.collects)))


@pytest.mark.parametrize("name", ["cartpole_team", "simple_tag"])
def test_both_kinds_of_one_environment_give_the_same_rows(name):
    make, played = maker(name)
    parallel = play(make, played.env_indices, played.collects)
    aec = play(lambda: parallel_to_aec(make()), played.env_indices, [4 * ticks for ticks in played.collects])
    both = parallel.finished.keys() & aec.finished.keys()
    assert len(both) >= 3
    for place, agent in itertools.product(both, parallel.agents):
        rows, others = parallel.rows[(*place, agent)], aec.rows[(*place, agent)]
        assert len(rows) == len(others) > 0
        for row, other in zip(rows, others, strict=True):
            for column in ("obs", "action", "reward", "behavior_logp", "t_agent"):
                np.testing.assert_array_equal(row[column], other[column])
