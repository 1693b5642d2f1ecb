"""Shared by the servers on the official Python SDKs: lists, resources and start-up."""

from __future__ import annotations

import socket
import sys
from typing import Any, Awaitable, Callable

import uvicorn

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

CLOCK = "test://clock"
CLOCK_SECONDS = 0.3
NAMES = ["Ada", "Alan", "Barbara"]
FORM = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "sure": {"type": "boolean"}},
    "required": ["name", "sure"],
}


def _tool(name: str, description: str, output: dict[str, str] | None = None, **arguments: str) -> dict[str, Any]:
    def schema(members: dict[str, str]) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {key: {"type": kind} for key, kind in members.items()},
            "required": list(members),
        }

    tool = {"name": name, "description": description, "inputSchema": schema(arguments)}
    return tool if output is None else {**tool, "outputSchema": schema(output)}


TOOLS = [
    _tool("echo", "Says it again, and logs it", message="string"),
    _tool("count", "Counts, with progress at each step", to="integer", delayMs="integer"),
    _tool("confirm", "Asks the user for a form"),
    _tool("think", "Asks the client's model", prompt="string"),
    _tool("where", "Asks for the client's roots"),
    _tool("fail", "Fails"),
    _tool("crash", "Ends the process in the middle of the call"),
    _tool("structured", "Tells how many counts are running", output={"running": "integer"}),
]
RESOURCES = [{"uri": "test://static", "name": "static"}, {"uri": CLOCK, "name": "clock"}]
TEMPLATES = [{"uriTemplate": "test://item/{id}", "name": "item"}]
PROMPTS = [{"name": "greet", "arguments": [{"name": "name", "required": True}]}]


def text_of(uri: str) -> str | None:
    """The text of a resource, or None."""
    if uri == "test://static":
        return "always the same"
    if uri == CLOCK:
        return "tick"
    item = uri.removeprefix("test://item/")
    return f"item {item}" if item != uri else None


async def serve(app: Any, port: int) -> None:
    """Serves an ASGI application and prints its port."""
    # IPPROTO_TCP must be given, or asyncio does not set TCP_NODELAY on the socket.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    print(f"listening on {listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    await uvicorn.Server(config).serve(sockets=[listener])


def command(stdio: Callable[[], Awaitable[None]], **over_http: Callable[[], Any]) -> Awaitable[None]:
    """Parses the command line: `stdio`, or an HTTP transport and its port."""
    match sys.argv[1:]:
        case ["stdio"]:
            return stdio()
        case [transport, port] if transport in over_http:
            return serve(over_http[transport](), int(port))
    sys.exit(f"usage: {sys.argv[0]} stdio | {' | '.join(over_http)} PORT")
