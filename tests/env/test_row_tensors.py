"""Single rows of a simulator's tensors are reset, saved and restored, and the others keep their values."""

import numpy as np
import pytest
import torch

from marlflow.env.batched.row_tensors import RowTensors, shares_state


class Body:
    def __init__(self, num_envs):
        self.place = torch.zeros(num_envs, 2)
        # As long as there are environments, but no row of them.
        self.gravity = torch.tensor([0.0, -9.8])


class Simulator:
    """Each environment counts; a reset draws places, in new tensors for bodies and in place for `goals`."""

    def __init__(self, num_envs, common=False):
        self.num_envs, self.common = num_envs, common
        self.bodies, self.goals = [Body(num_envs), Body(num_envs)], {"first": torch.zeros(num_envs, 1)}
        self.time, self.favorite, self.parent = torch.zeros(num_envs), self.bodies[0], self
        self.reset(0)

    def reset(self, seed):
        generator = torch.Generator().manual_seed(seed)
        # Both bodies share one tensor until they move.
        self.bodies[0].place = self.bodies[1].place = torch.rand(self.num_envs, 2, generator=generator)
        self.goals["first"].copy_(torch.rand(self.num_envs, 1, generator=generator))
        self.time = torch.zeros(self.num_envs)
        if self.common:
            self.favorite = self.bodies[seed % 2]

    def step(self):
        self.time = self.time + 1
        for number, body in enumerate(self.bodies):
            body.place = body.place + (number + 1) * body.gravity

    def rows(self, at):
        columns = [self.time, self.goals["first"], *(body.place for body in self.bodies)]
        return [column[at].tolist() for column in columns]


def of(simulator, other_num_envs=3):
    return RowTensors(simulator, simulator.num_envs, Simulator(other_num_envs), other_num_envs)


def test_only_the_rows_that_are_reset_change():
    simulator, alone = Simulator(5), Simulator(5)
    rows = of(simulator)
    for number, reset in enumerate([[1, 4], [0], [2, 3], [0, 1, 2, 3, 4]]):
        for _ in range(3):
            simulator.step()
        before = simulator.rows(slice(None))
        rows.reset(np.array(reset), lambda seed=number: simulator.reset(seed))
        alone.reset(number)
        for index in range(5):
            expected = alone.rows(index) if index in reset else [column[index] for column in before]
            assert simulator.rows(index) == expected, (number, index)


def test_saved_rows_go_on_elsewhere_and_constants_stay():
    simulator, other = Simulator(2), Simulator(4)
    simulator.step()
    expected = simulator.rows(1)
    saved = of(simulator).get(np.array([1, 0]))
    # Not the gravity, which has as many numbers as there are environments.
    assert sorted(saved) == ["bodies.0.place", "bodies.1.place", "goals.first", "time"]
    rows = of(other)
    untouched = other.rows([1, 3])
    rows.set(np.array([2, 0]), saved)
    assert other.rows(2) == expected
    assert other.rows([1, 3]) == untouched
    assert [body.gravity.tolist() for body in other.bodies] == [torch.tensor([0.0, -9.8]).tolist()] * 2
    simulator.step()
    other.step()
    assert other.rows(2) == simulator.rows(1)


def test_a_state_of_another_simulator_is_refused():
    rows = of(Simulator(4))
    saved = rows.get(np.array([0]))
    with pytest.raises(ValueError, match="another time"):
        rows.set(np.array([0]), {name: column for name, column in saved.items() if name != "time"})
    with pytest.raises(ValueError, match=r"another bodies\.0\.place"):
        rows.set(np.array([0]), {**saved, "bodies.0.place": np.zeros((1, 3), np.float32)})


def test_a_reset_that_leaves_out_a_tensor_is_an_error():
    simulator = Simulator(3)
    rows = of(simulator, 4)
    with pytest.raises(RuntimeError, match=r"changed time from a tensor \[3\]"):
        rows.reset(np.array([0]), lambda: setattr(simulator, "time", None))


@pytest.mark.parametrize("common", [False, True])
def test_what_a_reset_changes_for_all_environments_is_found(common):
    simulator = Simulator(3, common)
    assert shares_state(simulator, 3, simulator.reset) is common
