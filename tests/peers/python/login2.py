"""Client that logs in by itself, on mcp 2.x: login2.py URL USER CLIENT_ID|- TOOL...

PEER_REVISION pins 2026-07-28, or forces a handshake (`legacy`); without it the client probes.
"""

from __future__ import annotations

import os
import sys

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

import anyio
import httpx2
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult
from person import METADATA, Person


async def main(url: str, user: str, client_id: str, *tools: str) -> None:
    person = Person(user, client_id, httpx2.AsyncClient)

    async def callback() -> AuthorizationCodeResult:
        return AuthorizationCodeResult(**person.sent)

    provider = OAuthClientProvider(
        server_url=url,
        client_metadata=METADATA,
        storage=person,
        redirect_handler=person.log_in,
        callback_handler=callback,
    )
    calls = []
    async with httpx2.AsyncClient(auth=provider) as http_client:
        transport = streamable_http_client(url, http_client=http_client)
        async with Client(transport, mode=os.environ.get("PEER_REVISION") or "auto") as client:
            offered = [tool.name for tool in (await client.list_tools()).tools]
            for name in tools:
                result = await client.call_tool(name, {})
                calls.append({"name": name, "isError": bool(result.is_error), "text": result.content[0].text})
            revision = client.protocol_version
    person.report(calls, revision=revision, offered=offered)


anyio.run(main, *sys.argv[1:])
