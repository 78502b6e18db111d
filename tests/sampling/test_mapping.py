"""Which policy plays which agent, and every way in which rules can be wrong."""

import pytest

from marlflow.base.errors import ConfigInvalid
from marlflow.sampling import Rule, assign, group
from tests.sentences import refusals

AGENTS = ["adversary_0", "adversary_1", "agent_0"]


def test_the_first_rule_that_matches_wins():
    rules = [Rule("adversary_1", "lead"), Rule("adversary_*", "pack"), Rule("*", "prey")]
    assert assign(AGENTS, rules) == {"adversary_0": "pack", "adversary_1": "lead", "agent_0": "prey"}


def test_all_problems_are_reported_at_once():
    rules = [Rule("adversary_*", "pack"), Rule("adversary_0", "lead"), Rule("wolf_*", "wolf")]
    assert refusals(ConfigInvalid, assign, AGENTS, rules) == [
        "no mapping rule matches agent 'agent_0' (rules: 'adversary_*', 'adversary_0', 'wolf_*'); "
        "add one, or one for '*'",
        "mapping rule 2 (match 'adversary_0', policy 'lead') reaches no agent: earlier rules take adversary_0",
        "mapping rule 3 (match 'wolf_*', policy 'wolf') matches no agent; "
        "the agents are adversary_0, adversary_1, agent_0",
    ]


@pytest.mark.parametrize(
    ("agent", "expected"), [("adversary_0", "adversary"), ("a_b_12", "a_b"), ("wolf", "wolf"), ("x1", "x1")]
)
def test_a_group_is_a_name_without_its_number(agent, expected):
    assert group(agent) == expected
