"""A signature is the schema: what fits it is converted, what does not is said with its path."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import pytest

from marlflow.config.construct import LEFT, construct, fit


class Engine(Protocol):
    """What drives a car."""

    def start(self) -> str: ...


@dataclass(frozen=True)
class Diesel:
    """An engine."""

    litres: float = 2.0

    def start(self) -> str:
        return "rrr"


@dataclass(frozen=True)
class Wheel:
    """A part of a car."""

    inches: int
    name: str = "spare"


@dataclass(frozen=True)
class Car:
    """A thing of parts."""

    wheels: Sequence[Wheel]
    engine: Engine = field(default_factory=Diesel)
    doors: int | None = 4
    color: Literal["red", "blue"] = "red"
    extras: Mapping[str, float] = field(default_factory=dict)
    horn: Callable[..., Any] | None = None


HERE = __name__


def _made(values: Mapping[str, Any]) -> tuple[Any, list[str]]:
    problems: list[str] = []
    return construct(Car, values, "car", problems), problems


def test_everything_that_fits() -> None:
    car, problems = _made(
        {
            "wheels": [{"inches": 17.0}, {"inches": 18, "name": "front"}],
            "engine": {"_target_": f"{HERE}.Diesel", "litres": 3},
            "doors": None,
            "color": "blue",
            "extras": {"radio": 100},
            "horn": "builtins.print",
        }
    )
    assert problems == []
    assert car == Car((Wheel(17), Wheel(18, "front")), Diesel(3.0), None, "blue", {"radio": 100.0}, print)
    assert isinstance(car.engine.litres, float)


def test_everything_that_does_not_fit_is_said_and_its_default_stands_in() -> None:
    car, problems = _made(
        {
            "wheels": [{"inches": "big"}, {"inches": 17, "nmae": "front"}],
            "engine": {"litres": 3},
            "doors": 2.5,
            "color": "rde",
            "extras": {"radio": "loud"},
            "horn": "builtins.sortd",
            "wingz": 2,
        }
    )
    assert car == Car((Wheel(17),))
    assert problems == [
        "car.wheels[0].inches must be a whole number, not 'big'",
        "there is no car.wheels[1].nmae; did you mean 'car.wheels[1].name'?",
        "car.engine has no _target_: it must name the class to make it from, package.module.Class",
        "car.doors must be a whole number or null, not 2.5",
        "car.color must be one of red, blue, not 'rde'; did you mean 'red'?",
        "car.extras.radio must be a number, not 'loud'",
        "car.horn: module builtins has no 'sortd'; did you mean 'sorted'?",
        "there is no car.wingz; Car takes wheels, engine, doors, color, extras, horn",
    ]


def test_what_is_needed_and_missing() -> None:
    assert _made({}) == (LEFT, ["car.wheels is missing: Car needs it"])


def test_a_target_that_is_something_else() -> None:
    assert _made({"wheels": [], "engine": {"_target_": f"{HERE}.Wheel", "inches": 3}})[1] == [
        "car.engine: Wheel is no Engine: it has no start"
    ]


@pytest.mark.parametrize(
    ("value", "hint", "fitted"),
    [
        (3, float, 3.0),
        (1e6, int, 1_000_000),
        (True, bool, True),
        ([1, 2], Sequence[int], (1, 2)),
        ("x", Any, "x"),
        (".inf", float, math.inf),
    ],
)
def test_values_that_fit(value: Any, hint: Any, fitted: Any) -> None:
    problems: list[str] = []
    found = fit(value, hint, "here", problems)
    assert (found, type(found), problems) == (fitted, type(fitted), [])


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (True, int, "a whole number"),
        (1, bool, "true or false"),
        (1, str, "text"),
        ("ab", Sequence[str], "a list [...]"),
        ([], Mapping[str, int], "a mapping {...}"),
        (None, Wheel, "a mapping {inches, name}"),
    ],
)
def test_values_that_do_not_fit(value: Any, hint: Any, expected: str) -> None:
    problems: list[str] = []
    assert fit(value, hint, "here", problems) is LEFT
    assert problems == [f"here must be {expected}, not {value!r}"]
