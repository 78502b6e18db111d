"""Limit-deterministic Büchi automata (LDBA) as data: tasks in time, such as "goal1, then goal2, and never unsafe".

Sickert et al., 2016, "Limit-Deterministic Büchi Automata for Linear Temporal Logic", doi:10.1007/978-3-319-41540-6_17.
As tasks of reinforcement learning: Hasanbeig et al., 2022, arXiv:2209.10341 (LCRL).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid
from marlflow.base.sentences import meant

MOST_ATOMS: Final = 12
_KEYS = ("states", "initial", "transitions", "accepting", "sink", "epsilon")
_TOKEN = re.compile(r"\s*(?:([A-Za-z_]\w*)|([!&|()]))")
_Holds: TypeAlias = Callable[[Collection[str]], bool]


@dataclass(frozen=True, slots=True)
class Automaton:
    """An automaton whose states are numbers, with `names` as its data has them.

    `successors`: [states, 2 ** atoms], the state after each label; bit i of a label is `atoms[i]`. `accepting`: sets of
    states; each set has to be visited again and again. `sinks`: states that no accepting state follows. `epsilon`:
    states that an agent may move to without a step of the environment, by state.
    """

    names: tuple[str, ...]
    atoms: tuple[str, ...]
    initial: int
    successors: Array
    accepting: tuple[frozenset[int], ...]
    sinks: frozenset[int]
    epsilon: Mapping[int, tuple[int, ...]]

    def next(self, state: int, labels: Iterable[str]) -> int:
        """Return the state after the labels of one observation; labels that the automaton does not read are ignored."""
        names = set(labels)
        label = sum(1 << bit for bit, atom in enumerate(self.atoms) if atom in names)
        return int(self.successors[state, label])

    def following(self, state: int) -> set[int]:
        """Return the states that may follow, by any label or without one."""
        return {*self.successors[state].tolist(), *self.epsilon.get(state, ())}

    @property
    def satisfied(self) -> frozenset[int]:
        """States from which every continuation is accepted, because only states of all accepting sets follow."""
        states = set.intersection(*map(set, self.accepting))
        while left := {state for state in states if not self.following(state) <= states}:
            states -= left
        return frozenset(states)


def read_automaton(data: Mapping[str, Any]) -> Automaton:
    """Check an automaton over all labels; raises ConfigInvalid with all problems.

    `states` is their number, or a list of names; `initial` one of them; `transitions` a list of `{from, when, to}`,
    where `when` is a condition over labels, such as `goal1 & !unsafe`; `accepting` a list of lists of states; `sink` a
    state or a list, which need no transitions; `epsilon` a mapping of states to lists of states.
    """
    reader = _AutomatonReader(data)
    if reader.problems:
        raise ConfigInvalid(reader.problems)
    automaton = Automaton(
        tuple(reader.names),
        tuple(reader.atoms),
        reader.initial,
        reader.successors(),
        tuple(map(frozenset, reader.accepting)),
        frozenset(reader.sinks),
        {state: tuple(targets) for state, targets in reader.epsilon.items() if targets},
    )
    problems = reader.problems or _unreachable(automaton)
    if problems:
        raise ConfigInvalid(problems)
    return automaton


class _AutomatonReader:
    """Reads the data of an automaton and collects its problems."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        unknown = [key for key in data if key not in _KEYS]
        self.problems = [f"automaton has no {key!r}{meant(str(key), _KEYS)}" for key in unknown]
        missing = [key for key in ("states", "initial", "transitions", "accepting") if data.get(key) is None]
        self.problems += [f"automaton.{key} is missing" for key in missing]
        if missing:
            return
        states = data["states"]
        self.names = [str(name) for name in (range(states) if isinstance(states, int) else states)]
        if not self.names or len(set(self.names)) < len(self.names):
            self.problems.append(f"automaton.states must be a number or a list of different names, not {states!r}")
            return
        self.initial = self._state(data["initial"], "initial")
        self.rules = [self._rule(rule, f"transitions[{n}]") for n, rule in enumerate(data["transitions"])]
        self.accepting = [self._states(each, f"accepting[{n}]") for n, each in enumerate(data["accepting"])]
        sink = data.get("sink")
        self.sinks = self._states([] if sink is None else sink if _is_list(sink) else [sink], "sink")
        epsilon = data.get("epsilon") or {}
        self.epsilon = {
            self._state(state, "epsilon"): self._states(targets, f"epsilon.{state}")
            for state, targets in epsilon.items()
        }
        self.atoms = sorted({atom for _, condition, _ in self.rules for atom in condition.atoms})
        # Further checks need transitions between known states.
        if not self.problems:
            self._check_sets()

    def _state(self, name: Any, path: str) -> int:
        if str(name) in self.names:
            return self.names.index(str(name))
        self.problems.append(f"automaton.{path}: there is no state {name!r}; states are {', '.join(self.names)}")
        return 0

    def _states(self, names: Any, path: str) -> list[int]:
        if not _is_list(names):
            self.problems.append(f"automaton.{path} must be a list of states, not {names!r}")
            return []
        return [self._state(name, path) for name in names]

    def _rule(self, rule: Any, path: str) -> tuple[int, LabelCondition, int]:
        if not isinstance(rule, Mapping) or not {"from", "to"} <= set(rule) <= {"from", "when", "to"}:
            self.problems.append(
                f"automaton.{path} must be {{from: <state>, when: <condition>, to: <state>}}, not {rule}"
            )
            return 0, LabelCondition("true"), 0
        try:
            condition = LabelCondition(str(rule.get("when", "true")))
        except ConfigInvalid as error:
            self.problems += [f"automaton.{path}.when: {problem}" for problem in error.problems]
            condition = LabelCondition("true")
        return self._state(rule["from"], path), condition, self._state(rule["to"], path)

    def _check_sets(self) -> None:
        if not self.accepting or not all(self.accepting):
            self.problems.append("automaton.accepting must be a list of sets, each with a state, such as [[2]]")
        for state in set(self.sinks).intersection(*[{s for each in self.accepting for s in each}]):
            self.problems.append(f"automaton.sink: state {self.names[state]} is accepting, and a sink never accepts")
        if len(self.atoms) > MOST_ATOMS:
            self.problems.append(
                f"automaton: conditions read {len(self.atoms)} labels; at most {MOST_ATOMS} are checked"
            )
        for state, targets in self.epsilon.items():
            if state in targets:
                self.problems.append(f"automaton.epsilon.{self.names[state]} leads to itself")
            for target in set(targets).intersection(self.sinks):
                self.problems.append(f"automaton.epsilon.{self.names[state]} leads to sink {self.names[target]}")
        if _has_cycle(self.epsilon):
            self.problems.append("automaton.epsilon has a cycle, in which an agent could move for ever")

    def successors(self) -> Array:
        """Return the state after each label, [states, 2 ** atoms]; note each state and label without exactly one."""
        table = np.zeros((len(self.names), 1 << len(self.atoms)), np.int64)
        for state, name in enumerate(self.names):
            rules = [(condition, to) for start, condition, to in self.rules if start == state]
            if not rules and state in self.sinks:
                table[state] = state
                continue
            for label in range(table.shape[1]):
                true = {atom for bit, atom in enumerate(self.atoms) if label >> bit & 1}
                targets = {to for condition, to in rules if condition.holds(true)}
                if len(targets) != 1:
                    self._note(name, true, targets)
                    break
                table[state, label] = targets.pop()
            if state in self.sinks and not set(table[state].tolist()) <= set(self.sinks):
                self.problems.append(f"automaton.sink: state {name} has transitions to states that are no sinks")
        return table

    def _note(self, name: str, true: Collection[str], targets: Collection[int]) -> None:
        seen = f"with {', '.join(sorted(true))}" if true else "without any label"
        to = " and ".join(self.names[target] for target in sorted(targets))
        found = f"leads to both {to}" if targets else "leads nowhere"
        self.problems.append(f"automaton: state {name} {found} {seen}; each label needs exactly one next state")


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _has_cycle(edges: Mapping[int, Sequence[int]]) -> bool:
    left = {state: set(targets) for state, targets in edges.items()}
    while ends := [state for state, targets in left.items() if not targets & left.keys()]:
        for state in ends:
            del left[state]
    return bool(left)


def reachable(automaton: Automaton, state: int) -> set[int]:
    """Return the states that can be reached from a state, itself included."""
    found, new = {state}, [state]
    while new:
        new = [after for after in automaton.following(new.pop()) if after not in found] + new
        found.update(new)
    return found


def _unreachable(automaton: Automaton) -> list[str]:
    found = reachable(automaton, automaton.initial)
    problems = [
        f"automaton: state {name} cannot be reached from state {automaton.names[automaton.initial]}"
        for state, name in enumerate(automaton.names)
        if state not in found
    ]
    for number, states in enumerate(automaton.accepting):
        if not problems and not any(state in reachable_again(automaton, state) for state in states):
            problems.append(f"automaton.accepting[{number}] can be visited only once, so no run is ever accepted")
    return problems


def reachable_again(automaton: Automaton, state: int) -> set[int]:
    """Return the states that can be reached from a state in at least one step."""
    return set().union(*(reachable(automaton, after) for after in automaton.following(state)))


class LabelCondition:
    """A condition; raises ConfigInvalid for a text that is none. `atoms` are the labels that it reads."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.atoms: set[str] = set()
        self._tokens = self._split(text)
        self.holds: _Holds = self._either()
        if self._tokens:
            raise self._wrong(f"{self._tokens[0]!r} is one too many")

    def _split(self, text: str) -> list[str]:
        tokens, at = [], 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._wrong(f"{text[at:].strip()[0]!r} is none of its signs")
            tokens.append(match[1] or match[2])
            at = match.end()
        return tokens

    def _wrong(self, reason: str) -> ConfigInvalid:
        return ConfigInvalid([f"{self.text!r} is no condition such as 'goal1 & !(unsafe | late)': {reason}"])

    def _either(self) -> _Holds:
        parts = [self._both()]
        while self._tokens[:1] == ["|"]:
            self._tokens.pop(0)
            parts.append(self._both())
        return lambda true: any(part(true) for part in parts)

    def _both(self) -> _Holds:
        parts = [self._single()]
        while self._tokens[:1] == ["&"]:
            self._tokens.pop(0)
            parts.append(self._single())
        return lambda true: all(part(true) for part in parts)

    def _single(self) -> _Holds:
        token = self._tokens.pop(0) if self._tokens else ""
        if token == "!":
            inner = self._single()
            return lambda true: not inner(true)
        if token == "(":
            inner = self._either()
            if self._tokens[:1] != [")"]:
                raise self._wrong("a parenthesis is not closed")
            self._tokens.pop(0)
            return inner
        if token.lower() in ("true", "false"):
            value = token.lower() == "true"
            return lambda _: value
        if not token or not (token[0].isalpha() or token[0] == "_"):
            raise self._wrong(f"a label is missing before {token!r}" if token else "it ends too early")
        self.atoms.add(token)
        return lambda true: token in true


def automaton_data(formula: str) -> dict[str, Any]:
    """Return the data of an automaton for `formula`, such as `F(goal1 & X(F(goal2))) & G(!unsafe)`.

    Operators: `!`, `&`, `|`, `->`, `F`, `G`, `X`, `U`; labels begin with a small letter. Raises ConfigInvalid for a
    formula that cannot be read, or that needs an automaton of your own.
    """
    try:
        with warnings.catch_warnings():
            # Its parser imports a deprecated module.
            warnings.simplefilter("ignore", DeprecationWarning)
            from flloat.parser.ltlf import LTLfParser
    except ImportError as error:
        problem = f"formula needs flloat: {error}; pip install 'marlflow[ltl]', or write the automaton as data"
        raise ConfigInvalid([problem]) from error
    try:
        with warnings.catch_warnings():
            # It leaves the file of its grammar open.
            warnings.simplefilter("ignore", ResourceWarning)
            dfa = LTLfParser()(formula).to_automaton()
    except Exception as error:  # each version of its parser raises other classes
        first = str(error).strip().partition("\n")[0]
        problem = f"formula {formula!r} cannot be read: {first}; an example is F(goal1 & X(F(goal2))) & G(!unsafe)"
        raise ConfigInvalid([problem]) from error
    rules = [
        {"from": start, "when": str(guard).replace("~", "!"), "to": to} for start, guard, to in dfa.get_transitions()
    ]
    accepting = sorted(dfa.accepting_states)
    if not accepting:
        raise ConfigInvalid([f"formula {formula!r} can never be satisfied"])
    states = sorted(dfa.states)
    data = {"states": states, "initial": dfa.initial_state, "transitions": rules, "accepting": [accepting]}
    loops = {state for state in states if {rule["to"] for rule in rules if rule["from"] == state} == {state}}
    data["sink"] = sorted(loops.difference(accepting))
    _refuse_mixed(formula, data)
    return data


def _refuse_mixed(formula: str, data: dict[str, Any]) -> None:
    automaton = read_automaton(data)
    for state in range(len(automaton.names)):
        for other in reachable_again(automaton, state):
            mutual = state in reachable_again(automaton, other)
            if mutual and (state in automaton.accepting[0]) != (other in automaton.accepting[0]):
                problem = f"formula {formula!r} is about what happens again and again, for which flloat's automata of"
                raise ConfigInvalid([f"{problem} finite words do not work: write the automaton as data"])
