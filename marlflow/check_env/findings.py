"""What is wrong with an environment, and what is worth knowing of it, as sentences that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gymnasium import spaces as gym

from marlflow.base.errors import EnvironmentHung, UserCodeFailed
from marlflow.check_env.ledger import without_own_frames
from marlflow.check_env.outcome import EnvProblem, Episodes, GroupOutcome, Kind, Speed, TestOutcome, Trial
from marlflow.check_env.play import Played
from marlflow.check_env.seats import SeatGroup, Seats
from marlflow.check_env.suitable import LEARNING
from marlflow.sampling import group

_TESTS_URL = "https://pettingzoo.farama.org/content/environment_tests"
_API_TESTS = ("api_test", "parallel_api_test")


@dataclass
class Findings:
    """A trial under way."""

    name: str
    kind: Kind = "Parallel"
    agents: tuple[str, ...] = ()
    state: str | None = None
    tests: tuple[TestOutcome, ...] = ()
    groups: tuple[GroupOutcome, ...] = ()
    episodes: Episodes | None = None
    reproducible: bool | None = None
    differs: str = ""
    speed: Speed | None = None
    problems: list[EnvProblem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def trial(self, seed: int) -> Trial:
        """All that was found; what was noted several times stands there once."""
        return Trial(
            name=self.name,
            kind=self.kind,
            agents=self.agents,
            seed=seed,
            tests=self.tests,
            groups=self.groups,
            episodes=self.episodes,
            reproducible=self.reproducible,
            differs=self.differs,
            state=self.state,
            speed=self.speed,
            problems=tuple(self.problems),
            notes=tuple(dict.fromkeys(self.notes)),
        )

    def failed(self, error: BaseException) -> None:
        """The environment raised, or did what it must not."""
        if not isinstance(error, UserCodeFailed):
            self.problems.append(EnvProblem(str(error), "mend it in the environment"))
            return
        remedy = "what it raised stands above: mend it there" if error.user_traceback else "mend it in the environment"
        if isinstance(error, EnvironmentHung):
            remedy = "raise env.step_timeout_s if it may take so long; where it was then stands above"
        self.problems.append(EnvProblem(f"{error.where}: {error.reason}", remedy, without_own_frames(error)))

    def about_tests(self) -> None:
        """A failed API test is a problem, for the rules that it tests are what marlflow builds on.

        To be called last: what has been found already, and has a place in an episode, is not said again.
        """
        for test in self.tests:
            if test.verdict != "failed":
                continue
            what = f"PettingZoo's {test.name} fails: {test.why}" + (f" ({test.where})" if test.where else "")
            if test.name not in _API_TESTS:
                apart = "; marlflow's own replay, with masks and other seeds, found no difference"
                self.notes.append(what + (apart if self.reproducible else ""))
            elif not any(test.why in problem.what for problem in self.problems):
                remedy = f"mend it: marlflow relies on PettingZoo's rules; what is tested: {_TESTS_URL}"
                self.problems.append(EnvProblem(what, remedy))

    def playable(self, seats: Seats) -> bool:
        """Whether the spaces of all agents allow at least random episodes; those that do not are problems."""
        wrong = [problem for of in seats.groups for problem in _unplayable(of)]
        self.problems += wrong
        return not wrong

    def about_play(self, played: Played, seats: Seats, unbalanced: str | None) -> None:
        """What random episodes came to."""
        if played.failure is not None:
            self.failed(played.failure)
        elif not played.results:
            self._endless(played)
        if played.not_closed is not None:
            self.failed(played.not_closed)
        if unbalanced is not None:
            remedy = "this should not be possible: please report it, with the environment"
            self.problems.append(EnvProblem(f"rewards: {unbalanced}", remedy))
        self._about_groups(seats)
        if played.vanished:
            self.notes.append(
                f"{played.vanished} times an agent left `agents` neither terminated nor truncated: set one of the two; "
                "as it is, it counts as truncated at its last observation"
            )

    def _endless(self, played: Played) -> None:
        what = f"no episode ended within {played.env_steps:,} env steps"
        self.problems.append(EnvProblem(what, "truncate its agents after some number of env steps"))

    def _about_groups(self, seats: Seats) -> None:
        for of in self.groups:
            if all(of.algorithms[name] for name in LEARNING):
                what = f"no algorithm that learns can play {of.name}: {of.algorithms[LEARNING[0]]}"
                self.problems.append(EnvProblem(what, "change its spaces by a wrapper, or leave it to policy random"))
            if of.never_acted and self.episodes is not None and self.episodes.played:
                self.notes.append(f"never asked for an action in any episode: {', '.join(of.never_acted)}")
            if of.reward_unattributed:
                self.notes.append(
                    f"{of.name} received {of.reward_unattributed:g} in all before a first decision or after an end: no "
                    "row has it, so nothing is learned from it"
                )
        names = [group(of.agents[0]) for of in seats.groups]
        for name in dict.fromkeys(name for name in names if names.count(name) > 1):
            first = seats.groups[names.index(name)].agents[0]
            self.notes.append(
                f"the agents of {name} see or do different things, and one policy needs them alike: give rules, as in "
                f"mapping=[{{match: {first}, policy: one}}, ...], or wrappers=padding"
            )

    def about_reproducing(self) -> None:
        """It is worth knowing, but not wrong, if episodes cannot be repeated."""
        if self.differs:
            self.notes.append(
                f"it is not reproducible: {self.differs}. Draw everything random from what reset(seed=...) was given; "
                "until then no run can be repeated, and a resumed run abandons the episodes that were under way"
            )


def _unplayable(of: SeatGroup) -> Iterator[EnvProblem]:
    space = of.spaces.action
    if of.masks != "none" and not isinstance(space, gym.Discrete):
        what = f"{of.name} has an action mask {of.masks}, but its actions are {space}"
        yield EnvProblem(what, "action masks are for Discrete actions: make them so, or leave the mask out")
    if not isinstance(space, gym.Discrete | gym.MultiDiscrete | gym.MultiBinary | gym.Box):
        remedy = "actions must be Discrete, MultiDiscrete, MultiBinary or Box: flatten them by a wrapper"
        yield EnvProblem(f"the actions of {of.name} are {space}", remedy)
