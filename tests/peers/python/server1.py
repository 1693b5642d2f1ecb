"""A server on mcp 1.x, over stdio, Streamable HTTP and HTTP+SSE."""

from __future__ import annotations

import sys

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

import json
import os
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp.types as types
from mcp.server.lowlevel import Server
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import McpError
from pydantic import AnyUrl
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route

from offers import CLOCK, CLOCK_SECONDS, FORM, NAMES, PROMPTS, RESOURCES, TEMPLATES, TOOLS, command, text_of

server: Server[Any, Any] = Server("server1", version="1", instructions="For tests.")
running = 0
watchers: set[Any] = set()


@server.list_tools()
async def list_tools() -> list[types.Tool]:
    return [types.Tool.model_validate(tool) for tool in TOOLS]


@server.list_resources()
async def list_resources() -> list[types.Resource]:
    return [types.Resource.model_validate(resource) for resource in RESOURCES]


@server.list_resource_templates()
async def list_templates() -> list[types.ResourceTemplate]:
    return [types.ResourceTemplate.model_validate(template) for template in TEMPLATES]


@server.list_prompts()
async def list_prompts() -> list[types.Prompt]:
    return [types.Prompt.model_validate(prompt) for prompt in PROMPTS]


@server.read_resource()
async def read_resource(uri: AnyUrl) -> list[ReadResourceContents]:
    text = text_of(str(uri))
    if text is None:
        raise McpError(types.ErrorData(code=-32002, message="Resource not found"))
    return [ReadResourceContents(content=text, mime_type="text/plain")]


@server.get_prompt()
async def get_prompt(_: str, arguments: dict[str, str] | None) -> types.GetPromptResult:
    text = f"Hello, {(arguments or {})['name']}"
    message = types.PromptMessage(role="user", content=types.TextContent(type="text", text=text))
    return types.GetPromptResult(messages=[message])


@server.completion()
async def complete(_: Any, argument: types.CompletionArgument, __: Any) -> types.Completion:
    return types.Completion(values=[name for name in NAMES if name.startswith(argument.value)])


@server.set_logging_level()
async def set_level(_: types.LoggingLevel) -> None:
    pass


@server.subscribe_resource()
async def subscribe(uri: AnyUrl) -> None:
    if str(uri) == CLOCK:
        watchers.add(server.request_context.session)


@server.unsubscribe_resource()
async def unsubscribe(_: AnyUrl) -> None:
    watchers.discard(server.request_context.session)


async def tick() -> None:
    while True:
        await anyio.sleep(CLOCK_SECONDS)
        for session in list(watchers):
            try:
                await session.send_resource_updated(AnyUrl(CLOCK))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                watchers.discard(session)


async def count(to: int, delay: float) -> str:
    global running
    context = server.request_context
    token = context.meta.progressToken if context.meta else None
    running += 1
    try:
        for step in range(1, to + 1):
            await anyio.sleep(delay)
            if token is not None:
                # Without the related request id it would be sent on the GET stream.
                await context.session.send_progress_notification(
                    token, step, to, related_request_id=str(context.request_id)
                )
    finally:
        running -= 1
    return f"counted to {to}"


@server.call_tool()
async def call_tool(name: str, arguments: dict[str, Any]) -> Any:
    context = server.request_context
    session, request = context.session, context.request_id
    match name:
        case "echo":
            await session.send_log_message("info", f"echo: {arguments['message']}", related_request_id=request)
            text = arguments["message"]
        case "count":
            text = await count(arguments["to"], arguments["delayMs"] / 1000)
        case "confirm":
            answer = await session.elicit_form("Who are you?", FORM, related_request_id=request)
            text = json.dumps({"action": answer.action, "content": answer.content})
        case "think":
            content = types.TextContent(type="text", text=arguments["prompt"])
            message = types.SamplingMessage(role="user", content=content)
            answer = await session.create_message([message], max_tokens=100, related_request_id=request)
            text = answer.content.text
        case "where":
            text = json.dumps([str(root.uri) for root in (await session.list_roots()).roots])
        case "crash":
            os._exit(3)
        case "structured":
            return {"running": running}
        case _:
            raise ValueError(f"{name}: on purpose")
    return [types.TextContent(type="text", text=text)]


async def over_stdio() -> None:
    async with stdio_server() as streams, anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        await server.run(*streams, server.create_initialization_options())
        tasks.cancel_scope.cancel()


def over_http() -> Starlette:
    manager = StreamableHTTPSessionManager(server)

    @asynccontextmanager
    async def lifespan(_: Any):
        async with manager.run(), anyio.create_task_group() as tasks:
            tasks.start_soon(tick)
            yield
            tasks.cancel_scope.cancel()

    class Endpoint:  # an instance: a function would be wrapped as a request handler
        async def __call__(self, *asgi: Any) -> None:
            await manager.handle_request(*asgi)

    return Starlette(routes=[Route("/mcp", Endpoint())], lifespan=lifespan)


def over_sse() -> Starlette:
    transport = SseServerTransport("/messages/")

    async def stream(request: Any) -> Response:
        async with transport.connect_sse(request.scope, request.receive, request._send) as streams:
            await server.run(*streams, server.create_initialization_options())
        return Response()

    @asynccontextmanager
    async def lifespan(_: Any):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tick)
            yield
            tasks.cancel_scope.cancel()

    routes = [Route("/sse", stream), Mount("/messages/", transport.handle_post_message)]
    return Starlette(routes=routes, lifespan=lifespan)


async def main() -> None:
    await command(over_stdio, http=over_http, sse=over_sse)


anyio.run(main)
