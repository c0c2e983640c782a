"""The live page of a run in a browser: the page of its report, which follows the run by server-sent events.

It reads the run directory and changes nothing. Two addresses are all there is, and nothing of a request becomes a path:

    /          the page as it is now
    /events    what has changed since, as long as somebody listens

Beside a run it is a process of its own, because a simulation forks. Who asks under a name that is not this machine's is
refused: a stranger's web page could otherwise have its own name point here and read along.
"""

import asyncio
import base64
import hashlib
import ipaddress
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coterie.live import Followed
from coterie.runtime.foreground import say
from coterie.runtime.programs import environment
from coterie.server.report import page_text
from coterie.wire.errors import ConfigError

LOOK_SECONDS = 0.5
ALIVE_SECONDS = 15.0  # without news, until a listener is sent an empty line
LISTEN_SECONDS = 600.0  # then a browser asks again by itself; who does not read does not stay for ever
MOST_LISTENERS = 32
END_SECONDS = 5.0  # for listeners to hear that it is over
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
# Pictures set the style of their own elements; scripts are the one whose digest is named.
POLICY = NOTHING + "; style-src 'unsafe-inline'; img-src data: blob:; connect-src 'self'; script-src 'sha256-{}'"


@dataclass(frozen=True)
class Page:
    """Where the page of a run is to be seen; port 0 is a free one."""

    host: str = "127.0.0.1"
    port: int = 0

    def open(self) -> socket.socket:
        """A socket that listens there."""
        try:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            return socket.create_server((self.host, self.port), family=family)
        except OSError as error:
            raise ConfigError(
                f"host = {self.host!r}, port = {self.port}: the page cannot be there ({error.strerror}); choose others"
            ) from None

    def announce(self, opened: socket.socket) -> None:
        address = ipaddress.ip_address(opened.getsockname()[0])
        name = socket.gethostname() if address.is_unspecified else self.host
        say(f"live page: http://{f'[{name}]' if ':' in name else name}:{opened.getsockname()[1]}/")
        if not address.is_loopback:
            say("whoever reaches this address can look: there is no password and no TLS")


class Live:
    """The application, for as many as look at the same run."""

    def __init__(self, place: Path, host: str = Page.host) -> None:
        self.followed = Followed(place)
        self.looking = asyncio.Lock()
        self.looked = -1e9  # when
        self.over = asyncio.Event()  # it will not be served any more
        self.listeners = 0
        routes = [Route("/", self.page), Route("/events", self.events)]
        self.app = Guarded(Starlette(routes=routes), {host.lower(), "localhost", socket.gethostname().lower()})

    async def look(self) -> None:
        """One for all listeners, in a thread: a large run takes a while to read."""
        async with self.looking:
            now = asyncio.get_running_loop().time()
            if now - self.looked >= LOOK_SECONDS / 2 or self.over.is_set():
                await asyncio.to_thread(self.followed.look, self.over.is_set())
                self.looked = now

    async def page(self, request: Request) -> Response:
        await self.look()
        live = {"now": self.followed.now, "version": self.followed.version}
        text = await asyncio.to_thread(page_text, **self.followed.content, live=live)
        script = text.partition("<script>")[2].partition("</script>")[0].encode()  # the data have no "<"
        digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
        return HTMLResponse(text, headers={"Content-Security-Policy": POLICY.format(digest)})

    async def events(self, request: Request) -> Response:
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return PlainTextResponse("only the page itself may listen\n", 403)
        if self.listeners >= MOST_LISTENERS:
            return PlainTextResponse("too many listen; close some pages\n", 503)
        seen = request.headers.get("last-event-id") or request.query_params.get("seen", "")
        return Listening(self, seen)

    async def news(self, seen: str) -> AsyncIterator[str]:
        """What a listener is told who has seen this version."""
        clock = asyncio.get_running_loop().time
        now, spoke, until = None, clock(), clock() + LISTEN_SECONDS
        while clock() < until:
            over = self.over.is_set()
            await self.look()
            told = self.followed
            if told.now != now:
                now, spoke = told.now, clock()
                yield event("now", now)
            if told.version != seen:
                seen, spoke = told.version, clock()
                yield event("run", told.content, seen)
            if over:
                yield event("end", {})
                return
            if clock() - spoke > ALIVE_SECONDS:
                spoke = clock()
                yield ":\n\n"
            with_patience = asyncio.wait_for(self.over.wait(), LOOK_SECONDS)
            try:
                await with_patience
            except TimeoutError:
                continue


class Listening(StreamingResponse):
    """Counts as a listener until it ends, and ends for one that does not read."""

    def __init__(self, live: Live, seen: str) -> None:
        super().__init__(live.news(seen), media_type="text/event-stream")
        self.live = live
        live.listeners += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(LISTEN_SECONDS + END_SECONDS):
                await super().__call__(scope, receive, send)
        except TimeoutError:
            pass
        finally:
            self.live.listeners -= 1


def event(kind: str, data: Any, version: str = "") -> str:
    identity = f"id: {version}\n" if version else ""
    return f"event: {kind}\n{identity}data: {json.dumps(data)}\n\n"


class Guarded:
    """Refuses names that are not this machine's, and says with every answer what a browser may do with it."""

    def __init__(self, app: ASGIApp, names: set[str]) -> None:
        self.app, self.names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Content-Security-Policy", NOTHING)
            await send(message)

        app = self.app
        if scope["type"] == "http" and not self.is_ours(Headers(scope=scope).get("host", "")):
            app = PlainTextResponse("this machine has another name; use its address\n", 403)
        await app(scope, receive, with_headers)

    def is_ours(self, host: str) -> bool:
        """An address is what it says; a name is whatever its owner makes it."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        try:
            return bool(ipaddress.ip_address(name.removeprefix("[").removesuffix("]")))
        except ValueError:
            return name.lower() in self.names


class Server(uvicorn.Server):
    """Ends when the page is over; a signal is such an end."""

    def __init__(self, live: Live) -> None:
        super().__init__(
            uvicorn.Config(
                live.app,
                log_level="critical",
                access_log=False,
                server_header=False,
                ws="none",
                lifespan="off",
                limit_concurrency=2 * MOST_LISTENERS,
                timeout_graceful_shutdown=1,
            )
        )
        self.live = live

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.live.over.set()

    async def until_over(self) -> None:
        await self.live.over.wait()
        deadline = asyncio.get_running_loop().time() + END_SECONDS
        while self.live.listeners and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)
        self.should_exit = True


async def _serve(place: Path, host: str, opened: socket.socket, end: int | None) -> None:
    live = Live(place, host)
    server = Server(live)
    if end is not None:
        asyncio.get_running_loop().add_reader(end, live.over.set)
    await asyncio.gather(server.serve([opened]), server.until_over())


def serve(place: Path, page: Page) -> None:
    """Until a signal ends it."""
    with page.open() as opened:
        page.announce(opened)
        asyncio.run(_serve(place, page.host, opened, None))


@contextmanager
def beside(run_dir: Path, page: Page | None) -> Iterator[None]:
    """Within, the page of the run in this directory is there. Its process ends with this one, however that ends."""
    if page is None:
        yield
        return
    with page.open() as opened:
        command = [sys.executable, "-P", "-m", "coterie.page", str(run_dir), page.host, str(opened.fileno())]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": environment(run_dir)["PYTHONPATH"]},
            pass_fds=[opened.fileno()],
            start_new_session=True,  # Ctrl-C reaches the run, and the page tells how that ended
        )
        page.announce(opened)
    try:
        yield
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """A word, and not only the end of the pipe: workers of the run may have it open, too."""
    try:
        process.communicate(b"\n", timeout=2 * END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    _place, _host, _descriptor = sys.argv[1:]
    with socket.socket(fileno=int(_descriptor)) as _opened:
        asyncio.run(_serve(Path(_place), _host, _opened, sys.stdin.fileno()))
