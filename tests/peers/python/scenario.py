"""The scenario of the Python peers and its report.

The two SDK generations differ in names and in how a client is created; py1.py and py2.py hide that behind a `Peer`.
Results are plain dictionaries with their JSON names, which are the same in both.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import traceback
import warnings
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from typing import Any, Awaitable, Callable

import anyio
from mcp import StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

SOFT_SECONDS = 55  # the scenario is cancelled and the connection closed properly
HARD_SECONDS = 60  # closing took too long as well
STEP_SECONDS = 15
REQUEST_SECONDS = 10
CANCEL_SECONDS = 2
UPDATE_SECONDS = 10
LOG_SECONDS = 1
SPOTLIGHT = "elements://spotlight"

CLIENT_INFO = {"name": "rialto-peer", "version": "1.0.0"}

WANTED_REVISION = os.environ.get("PEER_REVISION") or "auto"
"""The requested revision; `auto` lets the SDK choose."""

PLAN = json.loads(os.environ.get("PEER_PLAN") or "null")
"""A plan to run instead of the scenario: see `carry_out`."""

FORM = {"name": "Ada", "sure": True}
"""The content of accepted elicitations."""


class Unsupported(Exception):
    """The SDK does not offer this in the negotiated revision."""


class Inbox:
    """Received notifications, with a way to wait for the first."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._arrived = anyio.Event()

    def push(self, item: Any) -> None:
        self.items.append(item)
        self._arrived.set()

    def clear(self) -> None:
        self.items.clear()
        self._arrived = anyio.Event()

    async def first(self, seconds: float) -> None:
        """Returns at the first item, or after `seconds` without one."""
        with anyio.move_on_after(seconds):
            await self._arrived.wait()


class Complaints(logging.Handler):
    """Collects SDK warnings: an unexpected response, a session that could not be ended..."""

    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        self._found.append(record.getMessage())


class Outbox:
    """Wraps the sending half of a transport.

    Neither SDK lets the caller choose the handshake revision, so `initialize` is rewritten here. The id of the last
    request is recorded, because the 1.x SDK does not expose it and a cancellation needs it.
    """

    def __init__(self, stream: Any, revision: str) -> None:
        self._stream = stream
        self._revision = revision
        self.last_id: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> Outbox:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)

    async def send(self, item: Any) -> None:
        message = getattr(item.message, "root", item.message)  # 1.x wraps the message once more
        self.last_id = getattr(message, "id", self.last_id)
        if self._revision != "auto" and getattr(message, "method", None) == "initialize":
            message.params["protocolVersion"] = self._revision
        await self._stream.send(item)


class Peer(ABC):
    """One connected client."""

    revision: str
    server: Any
    capabilities: Any
    instructions: Any
    logs: Inbox
    updates: Inbox

    @abstractmethod
    async def list(self, what: str, cursor: str | None) -> dict[str, Any]: ...

    @abstractmethod
    async def call(self, name: str, arguments: dict[str, Any], **options: Any) -> dict[str, Any]: ...

    @abstractmethod
    async def read(self, uri: str) -> dict[str, Any]: ...

    @abstractmethod
    async def prompt(self, name: str, arguments: dict[str, str]) -> dict[str, Any]: ...

    @abstractmethod
    async def complete(self, prompt: str, argument: dict[str, str]) -> dict[str, Any]: ...

    @abstractmethod
    async def set_level(self, level: str) -> dict[str, Any]:
        """Sets the log level; the returned arguments must be passed to the call."""

    @abstractmethod
    def watch(self, uri: str) -> AbstractAsyncContextManager[None]:
        """While open, updates of the resource arrive in `updates`."""

    @abstractmethod
    async def ping(self) -> None: ...

    async def after_cancel(self) -> None:
        """Sends the cancellation that the SDK leaves to the application."""


def open_transport(kind: str, target: list[str]) -> AbstractAsyncContextManager[Any]:
    """Creates a transport of this kind. A spawned server inherits the environment."""
    if kind == "http":
        return streamable_http_client(target[0])
    if kind == "sse":
        return sse_client(target[0])
    return stdio_client(StdioServerParameters(command=target[0], args=target[1:], env=dict(os.environ)))


def wire(model: Any) -> dict[str, Any]:
    """A result with its JSON names."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def main(sdk: str, version: str, connect: Callable[[str, list[str]], AbstractAsyncContextManager[Peer]]) -> None:
    """Runs the scenario and ends the process."""
    if len(sys.argv) < 3 or sys.argv[1] not in ("http", "sse", "stdio"):
        print(f"usage: {sys.argv[0]} http|sse URL  or  {sys.argv[0]} stdio COMMAND [ARGUMENT...]", file=sys.stderr)
        sys.exit(2)
    warnings.simplefilter("ignore")  # deprecated calls are tested on purpose
    report: dict[str, Any] = {"sdk": sdk, "version": version, "complaints": []}
    logging.basicConfig(level=logging.WARNING)  # to stderr
    logging.getLogger().addHandler(Complaints(report["complaints"]))

    def finish(code: int) -> None:
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()
        os._exit(code)  # do not wait for a hanging thread or child

    def give_up() -> None:
        report["timeout"] = True
        finish(1)

    watchdog = threading.Timer(HARD_SECONDS, give_up)
    watchdog.daemon = True
    watchdog.start()

    async def run() -> None:
        with anyio.move_on_after(SOFT_SECONDS) as deadline:
            try:
                async with connect(sys.argv[1], sys.argv[2:]) as peer:
                    report["revision"] = peer.revision
                    report["server"] = peer.server
                    report["capabilities"] = peer.capabilities
                    report["instructions"] = peer.instructions
                    await (carry_out(peer, report) if PLAN else play(peer, report))
                report["closed"] = True
            except Exception as error:
                traceback.print_exc()
                report["closed" if "unicode" in report or "gets" in report else "connection"] = {"failed": describe(error)}
        if deadline.cancel_called:
            give_up()

    anyio.run(run)
    finish(1 if "connection" in report else 0)


async def taken(report: dict[str, Any], key: str, run: Callable[[], Awaitable[Any]]) -> None:
    """Runs one step and records its outcome."""
    try:
        with anyio.fail_after(STEP_SECONDS):
            report[key] = await run()
    except Unsupported:
        report[key] = "unsupported"
    except Exception as error:
        report[key] = {"failed": describe(error)}


async def listed(peer: Peer, what: str, field: str) -> list[str]:
    """One field of each entry of a list, over all its pages."""
    found: list[str] = []
    cursor = None
    while True:
        page = await peer.list(what, cursor)
        found += [entry[field] for entry in page[what]]
        cursor = page.get("nextCursor")
        if cursor is None:
            return found


async def carry_out(peer: Peer, report: dict[str, Any]) -> None:
    """Lists everything, then calls, reads and gets what the plan names: pairs of a name and arguments, or URIs."""

    async def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        seen: list[float] = []

        async def noticed(progress: float, total: float | None, message: str | None) -> None:
            seen.append(progress)

        result = await peer.call(name, arguments, progress_callback=noticed)
        text = next((block["text"] for block in result["content"] if block["type"] == "text"), None)
        return {"text": text, "isError": result.get("isError", False), "progress": seen}

    async def read(uri: str) -> str:
        return (await peer.read(uri))["contents"][0]["text"]

    async def get(name: str, arguments: dict[str, str]) -> str:
        return (await peer.prompt(name, arguments))["messages"][0]["content"]["text"]

    for what, field in [("tools", "name"), ("resources", "uri"), ("prompts", "name")]:
        await taken(report, what, lambda: listed(peer, what, field))
    for key, run in [("calls", call), ("reads", read), ("gets", get)]:
        report[key] = {}
        for [name, *rest] in PLAN[key]:
            await taken(report[key], name, lambda: run(name, *rest))


async def play(peer: Peer, report: dict[str, Any]) -> None:
    async def step(key: str, run: Callable[[], Awaitable[Any]]) -> None:
        await taken(report, key, run)

    async def tool(name: str, arguments: dict[str, Any], **options: Any) -> dict[str, Any]:
        result = await peer.call(name, arguments, **options)
        return {
            "text": next((block["text"] for block in result["content"] if block["type"] == "text"), None),
            "structured": result.get("structuredContent"),
            "isError": result.get("isError", False),
        }

    async def read(uri: str) -> dict[str, Any]:
        contents = (await peer.read(uri))["contents"]
        return {"text": contents[0].get("text") if contents else None}

    async def names(what: str, field: str) -> list[str]:
        return await listed(peer, what, field)

    await step("tools", lambda: names("tools", "name"))
    await step("call", lambda: tool("getElement", {"name": "H"}))
    await step("position", lambda: tool("getElementByPosition", {"position": 26}))
    await step("unknown", lambda: tool("getElement", {"name": "Unobtainium"}))
    await step("protocolError", lambda: refusal(tool("noSuchTool", {})))

    seen: list[float] = []

    async def survey() -> str:
        async def noticed(progress: float, total: float | None, message: str | None) -> None:
            seen.append(int(progress) if float(progress).is_integer() else progress)

        return (await tool("surveyElements", {"count": 5, "delayMs": 20}, progress_callback=noticed))["text"]

    await step("surveyText", survey)
    report["progress"] = seen
    await step("cancelled", lambda: cancelled(peer))

    async def logs() -> list[dict[str, Any]]:
        options = await peer.set_level("debug")
        peer.logs.clear()
        await peer.call("getElement", {"name": "H"}, **options)
        # In the handshake era a notification may use another stream and arrive after the response.
        await peer.logs.first(LOG_SECONDS)
        await anyio.sleep(0.05)
        return [{"level": log["level"], "data": log["data"], "logger": log.get("logger")} for log in peer.logs.items]

    await step("logs", logs)
    await step("resources", lambda: names("resources", "uri"))
    await step("templates", lambda: names("resourceTemplates", "uriTemplate"))
    await step("read", lambda: read("elements://symbol/Fe"))
    await step("resourceError", lambda: refusal(read("elements://symbol/Nope")))
    await step("prompts", lambda: names("prompts", "name"))

    async def prompt() -> str | None:
        messages = (await peer.prompt("describeElement", {"name": "Fe"}))["messages"]
        return messages[0]["content"].get("text") if messages else None

    async def completion() -> list[str]:
        answer = await peer.complete("describeElement", {"name": "name", "value": "Hy"})
        return answer["completion"]["values"]

    async def updated() -> list[str]:
        peer.updates.clear()
        async with peer.watch(SPOTLIGHT):
            await peer.updates.first(UPDATE_SECONDS)
            return list(peer.updates.items)

    async def ping() -> bool:
        await peer.ping()
        return True

    await step("prompt", prompt)
    await step("completion", completion)
    await step("updated", updated)
    await step("ping", ping)
    await step("unicode", lambda: tool("getElement", {"name": "氢"}))


async def cancelled(peer: Peer) -> bool:
    """True if a long call, cancelled at its first progress notification, ends at once without a response."""
    notice = anyio.Event()
    scope = anyio.CancelScope()
    ended = anyio.Event()

    async def noticed(progress: float, total: float | None, message: str | None) -> None:
        notice.set()

    async def survey() -> None:
        with scope:
            await peer.call("surveyElements", {"count": 118, "delayMs": 200}, progress_callback=noticed)
        ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(survey)
        with anyio.fail_after(5):
            await notice.wait()
        scope.cancel()
        with anyio.fail_after(CANCEL_SECONDS):
            await ended.wait()
        await peer.after_cancel()
    return scope.cancelled_caught


async def refusal(request: Awaitable[Any]) -> dict[str, Any]:
    """The error that a request must end with."""
    try:
        answer = await request
    except Exception as error:
        if not hasattr(error, "error"):  # only the SDKs' protocol errors have it
            raise
        return {"code": error.error.code, "message": error.error.message}
    raise AssertionError(f"answered: {json.dumps(answer)}")


def describe(error: BaseException) -> str:
    """One line for an exception; an exception group is described by its first leaf."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
