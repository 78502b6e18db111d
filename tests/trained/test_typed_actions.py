"""What a person types is read as the action that it names, or refused with what would be legal."""

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from marlflow.sampling.acting_policy import ActionDecoder
from marlflow.trained.terminal import TypedActions, Unreadable

SPACES = [
    spaces.Discrete(4),
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([3, 2], start=[4, -1]),
    spaces.MultiDiscrete([2, 5]),
    spaces.MultiBinary(3),
    spaces.Box(-1, 1, (2,), np.float32),
    spaces.Box(0, 3, (1, 2), np.float64),
    spaces.Box(-np.inf, np.inf, (1,), np.float32),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_every_action_of_a_space_can_be_typed(space):
    space.seed(3)
    for _ in range(20):
        action = space.sample()
        text = " ".join(map(str, np.ravel(action).tolist()))
        read = ActionDecoder("you", space).choices(TypedActions(space, None).read(text)[None])[0]
        np.testing.assert_allclose(read, action, rtol=1e-6)
        assert space.contains(read)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_the_first_action_can_be_typed(space):
    typed = TypedActions(space, None)
    assert space.contains(ActionDecoder("you", space).choices(typed.read(typed.first())[None])[0])


@given(st.lists(st.booleans(), min_size=5, max_size=5).filter(any), st.integers(-9, 9))
def test_only_legal_numbers_are_taken(mask, number):
    typed = TypedActions(spaces.Discrete(5, start=-2), np.array(mask))
    legal = [index for index, allowed in enumerate(mask) if allowed]
    assert typed.listed() == [str(index - 2) for index in legal]
    assert int(typed.read(typed.first())) == legal[0]
    if number + 2 in legal:
        assert int(typed.read(str(number))) == number + 2
    else:
        with pytest.raises(Unreadable, match=f"{number} is not legal now; legal are {typed.listed()[0]}"):
            typed.read(str(number))


def test_names_are_read_in_any_case_and_before_numbers():
    typed = TypedActions(spaces.Discrete(3), None, {0: "2", 1: "Bet", 2: "Pass"})
    assert [int(typed.read(text)) for text in ("bet", " PASS ", "1", "2")] == [1, 2, 1, 0]
    with pytest.raises(Unreadable, match="did you mean 'pass'"):
        typed.read("passs")


def test_names_of_illegal_actions_are_not_taken():
    typed = TypedActions(spaces.Discrete(2), np.array([True, False]), {0: "pass", 1: "bet"})
    with pytest.raises(Unreadable, match="'bet' is no action; legal are 0 pass"):
        typed.read("bet")


def test_long_lists_are_not_repeated():
    with pytest.raises(Unreadable, match=r"type \? to see the 362 legal actions"):
        TypedActions(spaces.Discrete(362), None).read("400")


def test_masks_of_several_numbers():
    typed = TypedActions(spaces.MultiDiscrete([3, 2], start=[4, -1]), np.array([0, 1, 1, 1, 0]))
    assert typed.read("5 -1").tolist() == [1, 0]
    assert typed.first() == "5 -1"
    with pytest.raises(Unreadable, match="number 1 may not be 4 now; legal are 5, 6"):
        typed.read("4 -1")


@pytest.mark.parametrize(
    ("space", "text", "problem"),
    [
        (spaces.Discrete(2), "", "'' is no action"),
        (spaces.Discrete(2), "1.0", "'1.0' is no action"),
        (spaces.Box(-1, 1, (2,), np.float32), "0.5", "type 2 numbers from -1 to 1, with spaces"),
        (spaces.Box(-1, 1, (2,), np.float32), "a b", "are no numbers"),
        (spaces.Box(-1, 1, (2,), np.float32), "0 1.5", "outside of the space"),
        (spaces.Box(-1, 1, (1,), np.float32), "nan", "outside of the space"),
        (spaces.MultiDiscrete([3, 2]), "1 2", "outside of the space; type 2 numbers from 0 to 2, 0 to 1"),
        (spaces.MultiBinary(2), "1 x", "are no whole numbers"),
    ],
)
def test_what_cannot_be_read_is_explained(space, text, problem):
    with pytest.raises(Unreadable, match=problem):
        TypedActions(space, None).read(text)
