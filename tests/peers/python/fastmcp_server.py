"""A server on fastmcp 4.x, of both eras, over stdio, Streamable HTTP and HTTP+SSE (handshake era only).

fastmcp has no subscriptions, so the clock sends no updates.
"""

from __future__ import annotations

import sys

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

import json
import os
import warnings
from typing import Any

import anyio
import mcp_types as types
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from offers import CLOCK, FORM, NAMES, command, text_of

# Sampling and roots are deprecated in 2026-07-28 and still tested.
warnings.simplefilter("ignore")

server = FastMCP("fastmcp", version="4", instructions="For tests.")
running = 0


@server.tool
async def echo(message: str, context: Context) -> str:
    """Says it again, and logs it"""
    await context.info(f"echo: {message}")
    return message


@server.tool
async def count(to: int, delayMs: int, context: Context) -> str:
    """Counts, with progress at each step"""
    global running
    running += 1
    try:
        for step in range(1, to + 1):
            await anyio.sleep(delayMs / 1000)
            await context.report_progress(step, to)
    finally:
        running -= 1
    return f"counted to {to}"


def modern(context: Context) -> bool:
    return context.request_context.protocol_version in MODERN_PROTOCOL_VERSIONS


def answered(context: Context, request: types.InputRequest) -> Any:
    """The input response of a per-request call, or the input_required result."""
    if context.input_responses:
        return context.input_responses["question"]
    return types.InputRequiredResult(input_requests={"question": request}, request_state="asked")


@server.tool(output_schema=None)
async def confirm(context: Context) -> Any:
    """Asks the user for a form"""
    if modern(context):
        form = types.ElicitRequestFormParams(message="Who are you?", requested_schema=FORM)
        answer = answered(context, types.ElicitRequest(params=form))
    else:
        answer = await context.session.elicit("Who are you?", FORM, related_request_id=context.request_id)
    if isinstance(answer, types.InputRequiredResult):
        return answer
    return json.dumps({"action": answer.action, "content": answer.content})


@server.tool(output_schema=None)
async def think(prompt: str, context: Context) -> Any:
    """Asks the client's model"""
    message = types.SamplingMessage(role="user", content=types.TextContent(text=prompt))
    if modern(context):
        params = types.CreateMessageRequestParams(messages=[message], max_tokens=100)
        answer = answered(context, types.CreateMessageRequest(params=params))
    else:
        answer = await context.session.create_message(
            [message], max_tokens=100, related_request_id=context.request_id
        )
    return answer if isinstance(answer, types.InputRequiredResult) else answer.content.text


@server.tool(output_schema=None)
async def where(context: Context) -> Any:
    """Asks for the client's roots"""
    answer = answered(context, types.ListRootsRequest()) if modern(context) else await context.session.list_roots()
    if isinstance(answer, types.InputRequiredResult):
        return answer
    return json.dumps([str(root.uri) for root in answer.roots])


@server.tool
async def fail() -> str:
    """Fails"""
    raise ToolError("on purpose")


@server.tool
async def crash() -> str:
    """Ends the process in the middle of the call"""
    os._exit(3)


@server.tool
async def structured() -> dict[str, int]:
    """Tells how many counts are running"""
    return {"running": running}


@server.resource("test://static", name="static")
def static() -> str:
    return text_of("test://static") or ""


@server.resource(CLOCK, name="clock")
def clock() -> str:
    return text_of(CLOCK) or ""


@server.resource("test://item/{id}", name="item")
def item(id: str) -> str:
    return text_of(f"test://item/{id}") or ""


@server.prompt
def greet(name: str) -> str:
    return f"Hello, {name}"


@server.completion
async def complete(_: Any, argument: Any, __: Any) -> list[str]:
    return [name for name in NAMES if name.startswith(argument.value)]


async def over_stdio() -> None:
    await server.run_stdio_async(show_banner=False)


async def main() -> None:
    await command(over_stdio, http=lambda: server.http_app("/mcp"), sse=lambda: server.http_app("/sse", transport="sse"))


anyio.run(main)
