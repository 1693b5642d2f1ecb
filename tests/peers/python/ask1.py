"""Client that answers server requests during calls, on mcp 1.x: ask1.py URL..."""

from __future__ import annotations

import sys

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

from contextlib import asynccontextmanager
from typing import Any, AsyncIterator

from mcp import ClientSession, types
from mcp.client.streamable_http import streamable_http_client

from ask import FORM, ROOT, main, thought


async def sample(_: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    content = types.TextContent(type="text", text=thought(params.messages[0].content))
    return types.CreateMessageResult(role="assistant", model="none", content=content)


async def elicit(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content=FORM)


async def roots(_: Any) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[types.Root(uri=ROOT)])


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Any]:
    async with streamable_http_client(url) as (incoming, outgoing, *_):
        async with ClientSession(
            incoming, outgoing, sampling_callback=sample, elicitation_callback=elicit, list_roots_callback=roots
        ) as session:
            opening = await session.initialize()

            async def call(name: str, arguments: dict[str, Any]) -> tuple[bool, str]:
                result = await session.call_tool(name, arguments)
                return bool(result.isError), result.content[0].text

            yield str(opening.protocolVersion), call


main(connect)
