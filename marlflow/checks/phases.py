"""The phases in which an experiment is checked, and what each check looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from marlflow.base.errors import Problem, ProblemKind, Problems
from marlflow.checks.inspection import InspectedEnv
from marlflow.config.experiment import Experiment, LearnerConfig, Policy
from marlflow.config.opponents import Pairings
from marlflow.offline.dataset import Dataset
from marlflow.runtime.spec import RunSpec


@dataclass(frozen=True)
class CheckContext:
    """An experiment as far as it is known, and the problems that earlier phases found.

    `env` is the environment as it was inspected, and `spec` the run's; None where they are not known, which ends the
    phases that need them.
    """

    experiment: Experiment
    found: tuple[Problem | str, ...] = ()
    on_this_machine: bool = True
    learners: Mapping[str, LearnerConfig] = field(default_factory=dict)
    env: InspectedEnv | None = None
    records: Mapping[str, Dataset] = field(default_factory=dict)
    pairings: Pairings = field(default_factory=Pairings)
    spec: RunSpec | None = None

    @property
    def policies(self) -> Mapping[str, Policy]:
        """Return the policies that have agents, in phases that come only when the environment is known."""
        return self.inspected.players.policies

    @property
    def inspected(self) -> InspectedEnv:
        """Return the environment, in phases that come only when it is known."""
        assert self.env is not None
        return self.env

    @property
    def run(self) -> RunSpec:
        """Return the run's spec, in phases that come only when it is known."""
        assert self.spec is not None
        return self.spec


def types_are_right(context: CheckContext) -> bool:
    """Let a phase run unless a value has a wrong type, so that its checks would fail."""
    return not any(isinstance(one, Problem) and one.kind is ProblemKind.WRONG_TYPE for one in context.found)


def nothing_found(context: CheckContext) -> bool:
    """Let a phase run if there is no problem so far."""
    return not context.found


@dataclass(frozen=True)
class Phase:
    """Checks whose problems are reported together.

    Where `when` forbids the phase, no later one runs either. Before its checks, `make` adds to the context what they
    and later phases look at, and to the problems what is wrong with it.
    """

    checks: Sequence[Callable[[CheckContext], Iterable[Problem | str]]]
    when: Callable[[CheckContext], bool] = lambda _: True
    make: Callable[[CheckContext, Problems], CheckContext] = lambda context, _: context


def run_phases(phases: Sequence[Phase], context: CheckContext) -> CheckContext:
    """Return the context after all phases that can run, with their problems in order."""
    for phase in phases:
        if not phase.when(context):
            break
        problems = list(context.found)
        context = replace(phase.make(context, problems), found=tuple(problems))
        problems += [problem for check in phase.checks for problem in check(context)]
        context = replace(context, found=tuple(problems))
    return context
