"""Problems of an environment and notes on it, as sentences with remedies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gymnasium import spaces as gym

from marlflow.base.errors import EnvironmentHung, UserCodeFailed
from marlflow.base.spaces import DISCRETE_KINDS
from marlflow.check_env.outcome import BATCHED_TEST, EnvProblem, Episodes, GroupOutcome, Kind, Speed, TestOutcome, Trial
from marlflow.check_env.play import Played, without_own_frames
from marlflow.check_env.seats import LEARNING, SeatGroup, Seats
from marlflow.sampling import group

_TESTS_URL = "https://pettingzoo.farama.org/content/environment_tests"
_API_TESTS = ("api_test", "parallel_api_test")
# PettingZoo's test of a parallel environment says so where an agent acts again after its end.
_REVIVED = "agent cannot be revived once dead"


@dataclass
class Findings:
    """The results of a trial so far."""

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
        """Return the trial; repeated notes appear once."""
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
        """Add an error of the environment as a problem."""
        if not isinstance(error, UserCodeFailed):
            self.problems.append(EnvProblem(str(error), "mend it in the environment"))
            return
        # Reasons may name a wrapper, which is less work.
        mending = "or mend it in the environment" if "wrapper" in error.reason else "mend it in the environment"
        remedy = "the traceback is above: mend it there" if error.user_traceback else mending
        if isinstance(error, EnvironmentHung):
            remedy = "raise env.step_timeout_s if it may take so long; the stack at that time is above"
        self.problems.append(EnvProblem(f"{error.where}: {error.reason}", remedy, without_own_frames(error)))

    def about_tests(self) -> None:
        """Add failed tests: PettingZoo's API tests as problems, seed tests as notes. Call last."""
        for test in self.tests:
            if test.verdict != "failed":
                continue
            if test.name == BATCHED_TEST:
                remedy = "mend it, or set env.batched=false, which steps environments one by one"
                self.problems.append(EnvProblem(f"stepped by one call, it is another environment: {test.why}", remedy))
                continue
            text = f"PettingZoo's {test.name} fails: {test.why}" + (f" ({test.where})" if test.where else "")
            if test.name not in _API_TESTS:
                apart = "; marlflow's own replay, with masks and other seeds, found no difference"
                self.notes.append(text + (apart if self.reproducible else ""))
            elif test.why.startswith(_REVIVED):
                self.notes.append(
                    "agents come back after their end in the same episode, which PettingZoo's own rules exclude (its "
                    f"{test.name} ended there): marlflow trains them, each time from a new segment of rows; other "
                    "libraries may not"
                )
            # The random episodes may have found the same problem already, with its place. If not, it is still one:
            # marlflow relies on these rules.
            elif not any(test.why in problem.what for problem in self.problems):
                remedy = f"mend it: marlflow relies on PettingZoo's rules; what is tested: {_TESTS_URL}"
                self.problems.append(EnvProblem(text, remedy))

    def playable(self, seats: Seats) -> bool:
        """Return whether random episodes are possible; add unsuitable spaces as problems."""
        wrong = [problem for seat_group in seats.groups for problem in _unplayable(seat_group)]
        self.problems += wrong
        return not wrong

    def about_play(self, played: Played, seats: Seats, unbalanced: str | None) -> None:
        """Add the findings of random episodes."""
        if played.failure is not None:
            self.failed(played.failure)
        elif self.episodes is not None and self.episodes.out_of_time_s is not None and not played.results:
            # Whether an episode ends at all is not known after a limited time.
            text = (
                f"time ran out after {self.episodes.out_of_time_s:g} s and {played.env_steps:,} env steps, before the "
                "first random episode ended, so what its ends and returns are like was not checked"
            )
            remedy = (
                "if its episodes may be longer than that, give more time (--seconds 600), or a lower limit of env "
                "steps; if they have no limit, truncate its agents after some number of env steps"
            )
            self.problems.append(EnvProblem(text, remedy))
        if played.not_closed is not None:
            self.failed(played.not_closed)
        if unbalanced is not None:
            remedy = "this should not be possible: please report it, with the environment"
            self.problems.append(EnvProblem(f"rewards: {unbalanced}", remedy))
        self._add_group_findings(seats)
        if played.ledger is not None and (partly := played.ledger.partly_without_cost):
            self.notes.append(
                f"{', '.join(partly)} had no info['cost'] at some env steps: a policy with a CostLimit needs a number "
                "at every env step in which they act; give 0.0 where there is none"
            )
        if played.vanished:
            self.notes.append(
                f"{played.vanished} times an agent left `agents` neither terminated nor truncated: set one of the two; "
                "as it is, it counts as truncated at its last observation"
            )

    def _add_group_findings(self, seats: Seats) -> None:
        for seat_group in self.groups:
            if all(seat_group.algorithms[name] for name in LEARNING):
                text = f"no algorithm that learns can play {seat_group.name}: {seat_group.algorithms[LEARNING[0]]}"
                self.problems.append(EnvProblem(text, "change its spaces by a wrapper, or leave it to policy random"))
            if seat_group.never_acted and self.episodes is not None and self.episodes.played:
                self.notes.append(f"never asked for an action in any episode: {', '.join(seat_group.never_acted)}")
            if seat_group.reward_unattributed:
                self.notes.append(
                    f"{seat_group.name} received {seat_group.reward_unattributed:g} in all before a first decision or "
                    "after an end: no row has it, so nothing is learned from it"
                )
        names = [group(seat_group.agents[0]) for seat_group in seats.groups]
        for name in dict.fromkeys(name for name in names if names.count(name) > 1):
            first = seats.groups[names.index(name)].agents[0]
            self.notes.append(
                f"the agents of {name} see or do different things, and one policy needs them alike: give rules, as in "
                f"mapping=[{{match: {first}, policy: one}}, ...], or wrappers=padding"
            )

    def about_reproducing(self) -> None:
        """Add a note if episodes are not reproducible."""
        if self.differs:
            self.notes.append(
                f"it is not reproducible: {self.differs}. Draw everything random from what reset(seed=...) was given; "
                "until then no run can be repeated, and a resumed run abandons the episodes that were under way"
            )

    def about_drawing(self, differs: str | None) -> None:
        """Add a problem if pictures that agents see, or else something of an episode, depend on the render mode."""
        if differs is not None:
            self.problems.append(
                EnvProblem(
                    f"agents may not see what happens: {differs}",
                    "make it so: env.render_mode=rgb_array",
                )
            )


def _unplayable(seat_group: SeatGroup) -> Iterator[EnvProblem]:
    space = seat_group.spaces.action
    if seat_group.masks != "none" and not isinstance(space, DISCRETE_KINDS):
        text = f"{seat_group.name} has an action mask {seat_group.masks}, but its actions are {space}"
        yield EnvProblem(
            text,
            "action masks are for Discrete, MultiDiscrete and MultiBinary actions: make them so, or leave the mask out",
        )
    if not isinstance(space, (*DISCRETE_KINDS, gym.Box)):
        remedy = (
            "actions must be Discrete, MultiDiscrete, MultiBinary or Box; wrappers=flatten_actions may make them so"
        )
        yield EnvProblem(f"the actions of {seat_group.name} are {space}", remedy)
