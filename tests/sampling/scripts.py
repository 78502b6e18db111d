"""Scripts of environments: who sees and does what, who comes, ends and vanishes when, and with which habits.

What happens is drawn, so that a failure shrinks to few events; what is seen, paid and legal is a fingerprint of the
moment (see `built_environments`), so that no two rows look alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

OBSERVATIONS = {
    "vector": spaces.Box(-2, 2, (3,), np.float32),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "double": spaces.Box(-1, 1, (2, 2), np.float64),
    "half": spaces.Box(0, 1, (5,), np.float16),
    "scalar": spaces.Box(-1, 1, (), np.float32),
    "pixels": spaces.Box(0, 255, (2, 3, 3), np.uint8),
    "whole": spaces.Box(-900, 900, (4,), np.int16),
    "wide": spaces.Box(-(2**40), 2**40, (2,), np.int64),
    "number": spaces.Discrete(50, start=-7),
    "numbers": spaces.MultiDiscrete([40, 30], start=[1, -2]),
    "bits": spaces.MultiBinary(17),
    "nested": spaces.Dict(
        {
            "place": spaces.Box(-1, 1, (2,), np.float64),
            "cards": spaces.Tuple([spaces.Discrete(9, start=2), spaces.Box(0, 255, (2, 2), np.uint8)]),
        }
    ),
    "pair": spaces.Tuple([spaces.Box(-4, 4, (2,), np.float32), spaces.MultiDiscrete([3, 20])]),
}
ACTIONS = {
    "three": spaces.Discrete(3),
    "from_two": spaces.Discrete(4, start=2),
    "below_zero": spaces.Discrete(5, start=-3),
    "several": spaces.MultiDiscrete([2, 5]),
    "shifted": spaces.MultiDiscrete([3, 2], start=[4, -1]),
    "switches": spaces.MultiBinary(6),
    "force": spaces.Box(-1, 1, (2,), np.float32),
    "torque": spaces.Box(0, 3, (1, 2), np.float64),
}

STAY, TERMINATE, TRUNCATE, BOTH = "stay", "terminate", "truncate", "both"
VANISH, VANISH_SEEN, LINGER, JOIN = "vanish", "vanish_seen", "linger", "join"
EVENTS = (TERMINATE, TRUNCATE, BOTH, VANISH, VANISH_SEEN, LINGER, JOIN)

# Further habits of an environment; with lawful ones it passes PettingZoo's own API tests.
LAWFUL_HABITS = (
    "undeclared",
    "reuses_arrays",
    "reorders",
    "deads_first",
    "pays_the_dying",
    "fickle",
    "blank_final_masks",
    "masks_at_times",
)
HABITS = (
    *LAWFUL_HABITS,
    "dead_from_the_start",
    "returns",
    "pays_the_absent",
    "extra_keys",
    "terse",
    "no_last_words",
    "numpy_flags",
)
PAY = ("quarters", "floats", "whole", "single", "mixed")


@dataclass(frozen=True)
class Kind:
    """The spaces of some agents; `masks`: none, in the observation (alone or nested), or in the info."""

    sees: str
    does: str
    masks: str = "none"
    policies: int = 1

    def action_space(self) -> spaces.Space:
        return ACTIONS[self.does]

    def mask_space(self) -> spaces.Box:
        return spaces.Box(0, 1, (int(ACTIONS[self.does].n),), np.int8)

    def observation_space(self) -> spaces.Space:
        seen = OBSERVATIONS[self.sees]
        if self.masks == "alone":
            return spaces.Dict({"observation": seen, "action_mask": self.mask_space()})
        if self.masks == "beside":
            return spaces.Dict({"seen": seen, "action_mask": self.mask_space()})
        return seen


@dataclass(frozen=True)
class Course:
    """One episode: the agents at its start, and the events of agents by step; the last of its `steps` ends all agents.

    `turns` are added to the number of the step, over and over, to say whose turn it is (of an AEC environment).
    """

    present: tuple[bool, ...]
    steps: int
    happenings: tuple[tuple[int, int, str], ...] = ()  # (step, agent, event)
    turns: tuple[int, ...] = (0,)

    def events(self, t: int) -> list[str]:
        """The event of each agent at step `t`."""
        at = {agent: event for step, agent, event in self.happenings if step % self.steps == t}
        return [at.get(agent, STAY) for agent in range(len(self.present))]

    def turn(self, t: int) -> int:
        """Whose turn it is after step `t`."""
        return t + self.turns[t % len(self.turns)]


BREAKS = (
    *("step raises", "reset raises", "seeing raises", "reward is nan", "reward is infinite", "reward is a word"),
    "somebody is not paid",
    *("seen is nan", "seen is outside", "seen is misshapen", "nothing is legal", "somebody is undeclared"),
)


@dataclass(frozen=True)
class Break:
    """The fault after `moves` steps of the environment, in one of `every` episodes."""

    what: str
    moves: int
    every: int


@dataclass(frozen=True)
class Script:
    """An environment: agents of `kinds`, which of the `courses` an episode takes depends on its seed."""

    kinds: tuple[Kind, ...]
    kind_of: tuple[int, ...]
    courses: tuple[Course, ...]
    habits: frozenset[str] = frozenset()
    pay: str = "quarters"
    breaks: Break | None = None

    @property
    def agents(self) -> list[str]:
        return [f"built_{number}" for number in range(len(self.kind_of))]

    def kind(self, agent: str) -> Kind:
        return self.kinds[self.kind_of[self.agents.index(agent)]]

    def candidates(self) -> dict[str, list[str]]:
        """The policies that can play each agent."""
        of_kind = [[f"kind{k}_{p}" for p in range(kind.policies)] for k, kind in enumerate(self.kinds)]
        return {agent: of_kind[kind] for agent, kind in zip(self.agents, self.kind_of, strict=True)}

    def mapping(self) -> dict[str, str]:
        """A policy for each agent: the policies of its kind in turn."""
        return {agent: able[i % len(able)] for i, (agent, able) in enumerate(self.candidates().items())}

    def anchors(self) -> set[str]:
        """Agents that must be present when the environment is opened: one of each policy, one with a mask."""
        firsts = {policy: agent for agent, policy in reversed(self.mapping().items())}
        return set(firsts.values()) | {agent for agent in self.agents if self.kind(agent).masks == "info"}


def kinds(lawful: bool) -> st.SearchStrategy[Kind]:
    # PettingZoo's AEC test plays action 0 once, and asks even tuples and dicts for their dtype and shape.
    shifted = [name for name, space in ACTIONS.items() if isinstance(space, spaces.Discrete) and space.start]
    tuples = ["pair", "nested"]
    sees = st.sampled_from([name for name in OBSERVATIONS if not (lawful and name in tuples)])
    does = [name for name in ACTIONS if not (lawful and name in shifted)]
    discrete = [name for name in does if isinstance(ACTIONS[name], spaces.Discrete)]
    masks = st.sampled_from(["alone", "info"] if lawful else ["alone", "beside", "info"])
    policies = st.sampled_from([1, 2, 2])
    unmasked = st.builds(Kind, sees, st.sampled_from(does), policies=policies)
    return unmasked | st.builds(Kind, sees, st.sampled_from(discrete), masks, policies)


@st.composite
def scripts(draw: st.DrawFn, lawful: bool = False, breaks: bool = False) -> Script:
    num_agents = draw(st.sampled_from([1, 2, 3, 3, 4]))
    found = tuple(draw(st.lists(kinds(lawful), min_size=1, max_size=min(3, num_agents))))
    kind_of = tuple(draw(st.integers(0, len(found) - 1)) for _ in range(num_agents))
    events = st.sampled_from((TERMINATE, TRUNCATE, BOTH, JOIN) if lawful else EVENTS)
    happening = st.tuples(st.integers(0, 19), st.integers(0, num_agents - 1), events)
    course = st.builds(
        Course,
        st.tuples(*[st.sampled_from([True, True, True, False])] * num_agents),
        st.integers(1, 20),
        st.lists(happening, max_size=8).map(tuple),
        st.lists(st.integers(0, 3), min_size=1, max_size=5).map(tuple),
    )
    courses = tuple(draw(st.lists(course, min_size=1, max_size=3)))
    habits = draw(st.frozensets(st.sampled_from(LAWFUL_HABITS if lawful else HABITS)))
    wrong = st.builds(Break, st.sampled_from(BREAKS), st.integers(0, 9), st.integers(1, 3))
    return Script(found, kind_of, courses, habits, draw(st.sampled_from(PAY)), draw(wrong) if breaks else None)
