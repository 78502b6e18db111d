"""A coroutine that is begun at once does what it would as a task, and needs no event loop where it never waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from marlflow.base.awaiting import begun


def test_one_that_never_waits_is_done_here() -> None:
    async def within() -> int:
        return 2

    async def sums() -> int:
        return await within() + await within()

    assert begun(sums()) == 4


def test_what_it_raises_before_it_waits_is_raised_here() -> None:
    async def fails() -> None:
        raise LookupError("at once")

    with pytest.raises(LookupError, match="at once"):
        begun(fails())


def test_one_that_waits_goes_on_when_it_is_awaited() -> None:
    seen = []

    async def waits(future: Any) -> int:
        seen.append("begun")
        await asyncio.sleep(0)
        found = await future
        try:
            await asyncio.wait_for(asyncio.Future(), 0.001)
        except TimeoutError:
            seen.append("late")
        return int(found) + 1

    async def main() -> int:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        rest: Any = begun(waits(future))
        assert seen == ["begun"]
        task = asyncio.ensure_future(rest)
        await asyncio.sleep(0.01)
        future.set_result(6)
        return int(await task)

    assert asyncio.run(main()) == 7
    assert seen == ["begun", "late"]


def test_errors_and_cancellation_reach_it_where_it_waits() -> None:
    seen = []

    async def waits(future: Any) -> str:
        try:
            await future
        except (ValueError, asyncio.CancelledError) as error:
            seen.append(type(error).__name__)
            raise
        return "never"

    async def main() -> None:
        loop = asyncio.get_running_loop()
        failing: asyncio.Future[None] = loop.create_future()
        rest: Any = begun(waits(failing))
        failing.set_exception(ValueError("broken"))
        with pytest.raises(ValueError, match="broken"):
            await rest
        task = asyncio.ensure_future(begun(waits(loop.create_future())))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ["ValueError", "CancelledError"]
