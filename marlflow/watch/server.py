"""The server of the page: on loopback, behind a token, and reading only."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from marlflow.watch.followed import FollowedRun

HOST: Final = "127.0.0.1"
_PAGE = Path(__file__).with_name("page")
COOKIE: Final = "marlflow_watch"
_SAFE = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class WatchServer:
    """Follows runs and tells its pages what has changed.

    token: what the address has to have once; a cookie has it from then on.
    every_s: seconds from one look at the folders to the next.
    """

    def __init__(self, runs: Sequence[FollowedRun], token: str, every_s: float = 1.0) -> None:
        self.runs, self.token, self.every_s = runs, token, every_s
        self.versions = [0] * len(runs)
        # Runs are read in a thread, and told by the loop that serves pages.
        self._lock = threading.Lock()
        self.look()

    def look(self) -> None:
        """Read what the runs have written since."""
        for place, run in enumerate(self.runs):
            with self._lock:
                self.versions[place] += run.read()

    async def keep_looking(self) -> None:
        """Look at all runs again and again, outside of the loop that serves pages."""
        while True:
            await asyncio.sleep(self.every_s)
            await asyncio.to_thread(self.look)

    def app(self) -> Starlette:
        """Return the application."""
        routes = [
            Route("/", self._guarded(self._page)),
            Route("/events", self._guarded(self._events)),
            *(Route(f"/{name}", self._guarded(_file(name))) for name in ("watch.js", "watch.css")),
        ]
        # A name that resolves to loopback is no way in for pages of other sites.
        hosts = Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])
        return Starlette(routes=routes, middleware=[hosts])

    def _guarded(self, answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            given = request.query_params.get("token", "")
            # Browsers keep cookies by host, without the port: several servers have names of their own.
            cookie = f"{COOKIE}_{request.url.port}"
            if request.url.path == "/" and given and self._is_token(given):
                response: Response = RedirectResponse("/", status_code=303)
                response.set_cookie(cookie, given, httponly=True, samesite="strict")
            elif self._is_token(request.cookies.get(cookie, "")):
                response = await answer(request)
            else:
                response = PlainTextResponse("Open the address that marlflow watch printed: it has a token.", 403)
            response.headers.update(_SAFE)
            return response

        return guarded

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self.token.encode())

    async def _page(self, _: Request) -> Response:
        return FileResponse(_PAGE / "index.html")

    async def _events(self, request: Request) -> Response:
        asked = request.query_params.get("run", "0")
        chosen = int(asked) if asked.isdecimal() and int(asked) < len(self.runs) else 0
        return StreamingResponse(self._changes(chosen), media_type="text/event-stream")

    async def _changes(self, chosen: int) -> AsyncIterator[str]:
        """Yield all runs, then those that change; of the chosen one also the details."""
        told = [-1] * len(self.runs)
        while True:
            for place, run in enumerate(self.runs):
                if told[place] != self.versions[place]:
                    with self._lock:
                        told[place] = self.versions[place]
                        details = {"details": run.details()} if place == chosen else {}
                        news = _json({"run": place, "runs": len(self.runs), **run.summary(), **details})
                    yield f"data: {news}\n\n"
            # A comment, by which the server notices that a page is closed.
            yield ": \n\n"
            await asyncio.sleep(self.every_s)


def _file(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_: Request) -> Response:
        return FileResponse(_PAGE / name)

    return answer


def _json(values: Any) -> str:
    return json.dumps(_finite(values))


def _finite(values: Any) -> Any:
    """Return values that are JSON for a browser, which knows no NaN."""
    if isinstance(values, dict):
        return {key: _finite(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def serve(runs: Sequence[FollowedRun], port: int, say: Callable[[str], None], every_s: float = 1.0) -> None:
    """Serve the page on loopback until interrupted; `port` 0 is any free one. `say` is given its address."""
    watch = WatchServer(runs, secrets.token_urlsafe(16), every_s)

    async def main() -> None:
        config = uvicorn.Config(watch.app(), host=HOST, port=port, log_level="error", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started and not serving.done():
            await asyncio.sleep(0.02)
        if server.started:
            bound = server.servers[0].sockets[0].getsockname()[1]
            say(f"http://{HOST}:{bound}/?token={watch.token}")
        looking = asyncio.create_task(watch.keep_looking())
        # Without looks the page would say that it is live, and show nothing new.
        await asyncio.wait({serving, looking}, return_when=asyncio.FIRST_COMPLETED)
        if looking.done():
            server.should_exit = True
            await serving
            looking.result()
        looking.cancel()
        await serving

    asyncio.run(main())
