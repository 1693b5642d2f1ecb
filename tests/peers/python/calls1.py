"""Numbered calls on mcp 1.x: calls1.py URL"""

from __future__ import annotations

import sys

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, AsyncIterator

from mcp import ClientSession, types
from mcp.client.streamable_http import streamable_http_client
from pydantic import AnyUrl

from calls import RESOURCE, SECONDS, answer, main, number_of, say


async def elicit(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content=answer(params.message))


async def hear(message: Any) -> None:
    if isinstance(message, types.ServerNotification):
        if isinstance(message.root, types.ResourceUpdatedNotification):
            say(updated=number_of(message.root.params))
        elif isinstance(message.root, types.ToolListChangedNotification):
            say(changed=True)


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Any]:
    async with streamable_http_client(url) as (incoming, outgoing, *_):
        async with ClientSession(
            incoming,
            outgoing,
            read_timeout_seconds=timedelta(seconds=SECONDS),
            elicitation_callback=elicit,
            message_handler=hear,
        ) as session:
            await session.initialize()
            await session.subscribe_resource(AnyUrl(RESOURCE))

            async def call(name: str, arguments: dict[str, Any], progress: Any) -> str:
                result = await session.call_tool(name, arguments, progress_callback=progress)
                return result.content[0].text

            async def tools() -> list[str]:
                return [tool.name for tool in (await session.list_tools()).tools]

            yield call, tools


main(connect)
