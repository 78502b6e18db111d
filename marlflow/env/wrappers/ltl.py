"""Translate formulas of linear temporal logic into automata, with the library flloat (extra `ltl`).

flloat translates LTL over finite words. Its automaton is used on infinite ones if all states that can reach each other
accept alike: then visiting accepting states again and again is the same as remaining among them, as for formulas of "at
some time" and "never". "Again and again" (G F) is none of these; such automata are written as data.
"""

from __future__ import annotations

import warnings
from typing import Any

from marlflow.base.errors import ConfigInvalid
from marlflow.env.wrappers.automaton import reachable_again, read_automaton


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
