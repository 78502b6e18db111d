"""The server of the page: on loopback, behind a token, and reading only unless it may ask runs to stop."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import socket
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

from marlflow.base.errors import ConfigInvalid
from marlflow.runs.run_state import request_stop, run_state
from marlflow.watch.films import newest_film
from marlflow.watch.followed import FollowedRun

HOST: Final = "127.0.0.1"
_PAGE = Path(__file__).with_name("page")
COOKIE: Final = "marlflow_watch"
_SAFE = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class WatchServer:
    """Follows runs and tells its pages what has changed.

    token: what the address has to have once; a cookie has it from then on.
    every_s: seconds from one look at the folders to the next.
    control: whether pages have a button that asks a run to stop; without it nothing is ever changed.
    """

    def __init__(self, runs: Sequence[FollowedRun], token: str, every_s: float = 1.0, control: bool = False) -> None:
        self.runs, self.token, self.every_s, self.control = runs, token, every_s, control
        self.versions = [0] * len(runs)
        # Runs are read in a thread, and told by the loop that serves pages.
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._open_pages = 0
        self.look()

    def look(self) -> None:
        """Read what the runs have written since."""
        for place, run in enumerate(self.runs):
            with self._lock:
                self.versions[place] += run.read()

    async def keep_looking(self) -> None:
        """Look at all runs while a page is open, until `close`, outside of the loop that serves pages."""
        while not await asyncio.to_thread(self._closed.wait, self.every_s):
            if self._open_pages:
                await asyncio.to_thread(self.look)

    def close(self) -> None:
        """End `keep_looking`, and so `serve`, from any thread."""
        self._closed.set()

    def app(self) -> Starlette:
        """Return the application."""
        routes = [
            Route("/", self._guarded(self._page)),
            Route("/events", self._guarded(self._events)),
            Route("/film", self._guarded(self._film)),
            *([Route("/stop", self._guarded(self._stop), methods=["POST"])] if self.control else ()),
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
        return StreamingResponse(self._changes(self._chosen(request) or 0), media_type="text/event-stream")

    def _chosen(self, request: Request) -> int | None:
        """Return which run a request is about; a request has a number, and no path."""
        asked = request.query_params.get("run", "")
        return next((place for place in range(len(self.runs)) if str(place) == asked), None)

    async def _film(self, request: Request) -> Response:
        chosen = self._chosen(request)
        film = None if chosen is None else await asyncio.to_thread(newest_film, self.runs[chosen].folder)
        if film is None:
            return PlainTextResponse("There is no film.", 404)
        return FileResponse(film.path, media_type=film.media_type)

    async def _stop(self, request: Request) -> Response:
        # Cookies are sent with requests of other pages of this host, too, on whatever port; their origin is another.
        if request.headers.get("origin") != f"http://{request.headers.get('host')}":
            return PlainTextResponse("Only the page itself can ask for this.", 403)
        chosen = self._chosen(request)
        if chosen is None or run_state(self.runs[chosen].folder).name != "running":
            return PlainTextResponse("This run is not running.", 409)
        try:
            request_stop(self.runs[chosen].folder)
        except OSError as error:
            return PlainTextResponse(f"The run's folder cannot be written to: {error.strerror}.", 409)
        return Response(status_code=204)

    async def _changes(self, chosen: int) -> AsyncIterator[str]:
        """Yield all runs, then those that change; of the chosen one also the details."""
        told = [-1] * len(self.runs)
        self._open_pages += 1
        try:
            await asyncio.to_thread(self.look)
            while not self._closed.is_set():
                for place, run in enumerate(self.runs):
                    if told[place] != self.versions[place]:
                        with self._lock:
                            told[place] = self.versions[place]
                            details = {"details": run.details()} if place == chosen else {}
                            of_all = {"run": place, "runs": len(self.runs), "control": self.control}
                            news = _json({**of_all, **run.summary(), **details})
                        yield f"data: {news}\n\n"
                # A comment, by which the server notices that a page is closed.
                yield ": \n\n"
                await asyncio.sleep(self.every_s)
        finally:
            self._open_pages -= 1


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


def serve(watch: WatchServer, port: int, say: Callable[[str], None]) -> None:
    """Serve the page on loopback until interrupted, or `watch.close()`; `port` 0 is any free one.

    `say` is given its address. Raises ConfigInvalid if the port cannot be had.
    """
    try:
        listening = socket.create_server((HOST, port))
    except OSError as error:
        raise ConfigInvalid(
            [f"port {port} of {HOST} cannot be used: {error.strerror}; port=0 takes any free one"]
        ) from error

    async def main() -> None:
        config = uvicorn.Config(watch.app(), ws="none", lifespan="off", log_level="error", timeout_graceful_shutdown=2)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listening]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.02)
        if server.started:
            say(f"http://{HOST}:{listening.getsockname()[1]}/?token={watch.token}")
        looking = asyncio.create_task(watch.keep_looking())
        # Without looks the page would say that it is live, and show nothing new. Open pages end before the server.
        while not (serving.done() or looking.done() or server.should_exit):
            await asyncio.wait({serving, looking}, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
        watch.close()
        server.should_exit = True
        await serving
        await looking

    with listening:
        asyncio.run(main())
