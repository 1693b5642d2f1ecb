"""Numbered calls on mcp 2.x: calls2.py URL

PEER_REVISION pins 2026-07-28, or forces a handshake (`legacy`).
"""

from __future__ import annotations

import os
import sys
import warnings

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

from contextlib import asynccontextmanager
from typing import Any, AsyncIterator

import mcp_types as types
from mcp import Client
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from calls import RESOURCE, SECONDS, answer, main, number_of, say


warnings.simplefilter("ignore")  # resources/subscribe is deprecated


async def elicit(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content=answer(params.message))


async def hear(message: Any) -> None:
    if isinstance(message, types.ResourceUpdatedNotification):
        say(updated=number_of(message.params))
    elif isinstance(message, types.ToolListChangedNotification):
        say(changed=True)


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Any]:
    client = Client(
        url,
        mode=os.environ["PEER_REVISION"],
        read_timeout_seconds=SECONDS,
        elicitation_callback=elicit,
        message_handler=hear,
    )
    async with client:
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            await client.subscribe_resource(RESOURCE)

        async def call(name: str, arguments: dict[str, Any], progress: Any) -> str:
            result = await client.call_tool(name, arguments, progress_callback=progress)
            return result.content[0].text

        async def tools() -> list[str]:
            return [tool.name for tool in (await client.list_tools(cache_mode="refresh")).tools]

        yield call, tools


main(connect)
