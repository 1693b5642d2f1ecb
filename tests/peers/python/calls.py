"""Shared by calls1.py and calls2.py: numbered calls read from stdin, outcomes written to stdout.

Each input line is a call, {"number", "name", "arguments"}, or {"list": true}. Each gets one output line with the result
text or the error, and the progress received. Messages outside of calls have their own lines: {"updated": NUMBER},
{"changed": true} after a tool list change, and {"renewed": WHY} when an unusable client was replaced. End of input ends
the process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
from typing import Any, AsyncIterator, Callable

RESOURCE = "res://one"
SECONDS = int(os.environ.get("PEER_TIMEOUT_SECONDS", "8"))
PAUSE = 0.1
MOST_FAILURES = 2
"""Consecutive failed calls after which a client is replaced."""


class Useless(Exception):
    """Too many calls of a client failed."""


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def words(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__} {error}"


def answer(message: str) -> dict[str, Any]:
    """The answer to a server request."""
    return {"number": int(message)}


def number_of(params: Any) -> int | None:
    """The number in a resource update."""
    meta = params.model_dump(by_alias=True).get("_meta") or {}
    return meta.get("number")


class Ears(logging.Handler):
    """Detects that the SDK gave up reconnecting its GET stream, which is permanent and only logged."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.deaf: str | None = None
        logger = logging.getLogger("mcp.client.streamable_http")
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("GET stream max reconnection attempts"):
            self.deaf = record.getMessage()
            say(deaf=self.deaf)


class Work:
    """Queued and running calls."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[str] = asyncio.Queue()
        self.undone: str | None = None
        self.current: dict[str, Any] | None = None
        self.progress: list[float] = []
        self.ended = False
        self.ears = Ears()
        loop = asyncio.get_running_loop()

        def read() -> None:
            for line in iter(sys.stdin.readline, ""):
                loop.call_soon_threadsafe(self.lines.put_nowait, line)
            loop.call_soon_threadsafe(self.lines.put_nowait, "")

        threading.Thread(target=read, daemon=True).start()

    def fail(self, error: BaseException) -> None:
        """Reports the running calls as failed."""
        if self.current is None:
            return
        if "list" in self.current:
            say(tools=None)
        else:
            say(number=self.current["number"], failed=words(error), progress=self.progress)
        self.current = None

    async def on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.append(progress)

    async def use(self, call: Callable[..., Any], tools: Callable[..., Any]) -> None:
        """Runs the queued calls with one client."""
        failures = 0
        while True:
            line, self.undone = self.undone or await self.lines.get(), None
            if not line:
                self.ended = True
                return
            if self.ears.deaf:
                self.undone = line
                raise Useless(self.ears.deaf)
            self.current, self.progress = json.loads(line), []
            try:
                if "list" in self.current:
                    names = await tools()
                    say(tools=names)
                else:
                    text = await call(self.current["name"], self.current["arguments"], self.on_progress)
                    say(number=self.current["number"], answered=text, progress=self.progress)
                self.current = None
                failures = 0
            except Exception as error:
                self.fail(error)
                failures += 1
                await asyncio.sleep(PAUSE)
                if failures >= MOST_FAILURES:
                    raise Useless(words(error)) from error


def main(connect: Callable[[str], AsyncIterator[Any]]) -> None:
    """Makes calls; `connect` yields functions that call a tool and list the tools."""

    async def run() -> None:
        work = Work()
        while not work.ended:
            work.ears.deaf = None
            try:
                async with connect(sys.argv[1]) as (call, tools):
                    await work.use(call, tools)
            except BaseException as error:
                if not isinstance(error, (Exception, BaseExceptionGroup)):
                    raise
                work.fail(error)
                say(renewed=words(error))
                await asyncio.sleep(PAUSE)

    asyncio.run(run())
