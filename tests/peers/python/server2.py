"""A server on mcp 2.x, of both eras, over stdio, Streamable HTTP and HTTP+SSE (handshake era only)."""

from __future__ import annotations

import sys

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

import json
import os
import warnings
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route

from offers import CLOCK, CLOCK_SECONDS, FORM, NAMES, PROMPTS, RESOURCES, TEMPLATES, TOOLS, command, text_of

# Logging, sampling and roots are deprecated in 2026-07-28 and still tested.
warnings.simplefilter("ignore")

bus = InMemorySubscriptionBus()
running = 0
watchers: set[Any] = set()


async def list_tools(*_: Any) -> types.ListToolsResult:
    return types.ListToolsResult.model_validate({"tools": TOOLS})


async def list_resources(*_: Any) -> types.ListResourcesResult:
    return types.ListResourcesResult.model_validate({"resources": RESOURCES})


async def list_templates(*_: Any) -> types.ListResourceTemplatesResult:
    return types.ListResourceTemplatesResult.model_validate({"resourceTemplates": TEMPLATES})


async def list_prompts(*_: Any) -> types.ListPromptsResult:
    return types.ListPromptsResult.model_validate({"prompts": PROMPTS})


async def read_resource(_: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    text = text_of(params.uri)
    if text is None:
        raise MCPError(-32602, "Resource not found")
    return types.ReadResourceResult(contents=[types.TextResourceContents(uri=params.uri, text=text)])


async def get_prompt(_: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
    text = f"Hello, {(params.arguments or {})['name']}"
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=types.TextContent(text=text))])


async def complete(_: Any, params: types.CompleteRequestParams) -> types.CompleteResult:
    values = [name for name in NAMES if name.startswith(params.argument.value)]
    return types.CompleteResult(completion=types.Completion(values=values))


async def set_level(*_: Any) -> types.EmptyResult:
    return types.EmptyResult()


async def subscribe(context: Any, params: types.SubscribeRequestParams) -> types.EmptyResult:
    if params.uri == CLOCK:
        # The session of the context lasts for one request; its connection outlives it.
        watchers.add(context.session._connection)
    return types.EmptyResult()


async def unsubscribe(context: Any, _: Any) -> types.EmptyResult:
    watchers.discard(context.session._connection)
    return types.EmptyResult()


async def tick() -> None:
    while True:
        await anyio.sleep(CLOCK_SECONDS)
        await bus.publish(ResourceUpdated(CLOCK))
        for connection in list(watchers):
            try:
                await connection.send_resource_updated(CLOCK)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                watchers.discard(connection)


async def count(context: Any, to: int, delay: float) -> str:
    global running
    running += 1
    try:
        for step in range(1, to + 1):
            await anyio.sleep(delay)
            await context.session.report_progress(step, to)
    finally:
        running -= 1
    return f"counted to {to}"


def question(name: str, arguments: dict[str, Any]) -> types.InputRequest | None:
    """The client as a tool sees it."""
    match name:
        case "confirm":
            form = types.ElicitRequestFormParams(message="Who are you?", requested_schema=FORM)
            return types.ElicitRequest(params=form)
        case "think":
            content = types.TextContent(text=arguments["prompt"])
            message = types.SamplingMessage(role="user", content=content)
            return types.CreateMessageRequest(
                params=types.CreateMessageRequestParams(messages=[message], max_tokens=100)
            )
        case "where":
            return types.ListRootsRequest()
    return None


async def ask(context: Any, asked: types.InputRequest) -> Any:
    """Sends a server request during the call (handshake era)."""
    session, request = context.session, context.request_id
    match asked:
        case types.ElicitRequest(params=params):
            return await session.elicit_form(params.message, params.requested_schema, related_request_id=request)
        case types.CreateMessageRequest(params=params):
            return await session.create_message(params.messages, max_tokens=100, related_request_id=request)
    return await session.list_roots()


def shown(answer: Any) -> str:
    match answer:
        case types.ElicitResult():
            return json.dumps({"action": answer.action, "content": answer.content})
        case types.ListRootsResult():
            return json.dumps([str(root.uri) for root in answer.roots])
    return answer.content.text


async def call_tool(
    context: Any, params: types.CallToolRequestParams
) -> types.CallToolResult | types.InputRequiredResult:
    name, arguments = params.name, params.arguments or {}
    asked = question(name, arguments)
    if asked is not None:
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            text = shown(await ask(context, asked))
        elif params.input_responses and name in params.input_responses:
            # The request state must be echoed unchanged.
            if params.request_state != f"asked by {name}":
                raise MCPError(-32602, "The state is not mine")
            text = shown(params.input_responses[name])
        else:
            return types.InputRequiredResult(input_requests={name: asked}, request_state=f"asked by {name}")
        return types.CallToolResult(content=[types.TextContent(text=text)])
    match name:
        case "echo":
            text = arguments["message"]
            await context.session.send_log_message("info", f"echo: {text}", related_request_id=context.request_id)
        case "count":
            text = await count(context, arguments["to"], arguments["delayMs"] / 1000)
        case "fail":
            return types.CallToolResult(content=[types.TextContent(text="on purpose")], is_error=True)
        case "crash":
            os._exit(3)
        case "structured":
            found = {"running": running}
            content = [types.TextContent(text=json.dumps(found))]
            return types.CallToolResult(content=content, structured_content=found)
        case _:
            raise MCPError(-32602, f"Unknown tool: {name}")
    return types.CallToolResult(content=[types.TextContent(text=text)])


server = Server(
    "server2",
    version="2",
    instructions="For tests.",
    on_list_tools=list_tools,
    on_call_tool=call_tool,
    on_list_resources=list_resources,
    on_list_resource_templates=list_templates,
    on_read_resource=read_resource,
    on_subscribe_resource=subscribe,
    on_unsubscribe_resource=unsubscribe,
    on_subscriptions_listen=ListenHandler(bus),
    on_list_prompts=list_prompts,
    on_get_prompt=get_prompt,
    on_completion=complete,
    on_set_logging_level=set_level,
)


@asynccontextmanager
async def ticking(_: Any = None):
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        yield
        tasks.cancel_scope.cancel()


async def over_stdio() -> None:
    async with stdio_server() as streams, ticking():
        await server.run(*streams, server.create_initialization_options())


def over_http() -> Starlette:
    app = server.streamable_http_app()
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: Any):
        async with inner(app), ticking():
            yield

    app.router.lifespan_context = lifespan
    return app


def over_sse() -> Starlette:
    transport = SseServerTransport("/messages/")

    async def stream(request: Any) -> Response:
        async with transport.connect_sse(request.scope, request.receive, request._send) as streams:
            await server.run(*streams, server.create_initialization_options())
        return Response()

    routes = [Route("/sse", stream), Mount("/messages/", transport.handle_post_message)]
    return Starlette(routes=routes, lifespan=ticking)


async def main() -> None:
    await command(over_stdio, http=over_http, sse=over_sse)


anyio.run(main)
