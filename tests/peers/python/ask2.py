"""Client that answers server requests during calls, on mcp 2.x: ask2.py URL...

PEER_REVISION pins 2026-07-28, or forces a handshake (`legacy`); without it the client probes, as the SDK
does by default. A URL with /sse uses HTTP+SSE.
"""

from __future__ import annotations

import os
import sys

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

from contextlib import asynccontextmanager
from typing import Any, AsyncIterator

import mcp_types as types
from mcp import Client
from mcp.client.sse import sse_client

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
    client = Client(
        sse_client(url) if "/sse" in url else url,
        mode=os.environ.get("PEER_REVISION") or "auto",
        sampling_callback=sample,
        elicitation_callback=elicit,
        list_roots_callback=roots,
    )
    async with client:

        async def call(name: str, arguments: dict[str, Any]) -> tuple[bool, str]:
            result = await client.call_tool(name, arguments)
            return bool(result.is_error), result.content[0].text

        yield client.protocol_version, call


main(connect)
