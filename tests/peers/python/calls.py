"""What calls1.py and calls2.py share: calls that are numbered by whoever reads and writes this process's lines.

Each line that comes in is a call, {"number", "name", "arguments"}, or {"list": true}; each brings one line back, with
the text that a call was answered with, or the words with which it failed, and the progress that was told of. What
belongs to no call has lines of its own: {"updated": NUMBER}, {"changed": true} when there are other tools, and
{"renewed": WHY} when a client was of no use any more and another was opened. The end of the lines is the end.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from typing import Any, AsyncIterator, Callable

RESOURCE = "res://one"
SECONDS = 8
PAUSE = 0.1
MOST_FAILURES = 2
"""A client whose calls fail this often in a row is of no use any more."""


class Useless(Exception):
    """Too many calls of a client have failed."""


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def words(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__} {error}"


def answer(message: str) -> dict[str, Any]:
    """What a question is answered with."""
    return {"number": int(message)}


def number_of(params: Any) -> int | None:
    """The number that a notice of a change has."""
    meta = params.model_dump(by_alias=True).get("_meta") or {}
    return meta.get("number")


class Ears(logging.Handler):
    """Notes when the SDK gives up listening: it does so for good, and says it nowhere else."""

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
    """What is to be done, and what is being done."""

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
        """Says that what is being done has failed."""
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
        """Does what is to be done with one client."""
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
    """Makes calls; `connect` gives what calls a tool and what lists all."""

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
