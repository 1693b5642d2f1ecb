"""Client that logs in by itself, on mcp 1.x: login1.py URL USER CLIENT_ID|- TOOL..."""

from __future__ import annotations

import sys

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

import anyio
import httpx
from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamablehttp_client
from person import METADATA, Person


async def main(url: str, user: str, client_id: str, *tools: str) -> None:
    person = Person(user, client_id, httpx.AsyncClient)

    async def callback() -> tuple[str, str | None]:
        return person.sent["code"], person.sent.get("state")

    provider = OAuthClientProvider(
        server_url=url,
        client_metadata=METADATA,
        storage=person,
        redirect_handler=person.log_in,
        callback_handler=callback,
    )
    calls = []
    async with streamablehttp_client(url, auth=provider) as (read, write, session_id):
        async with ClientSession(read, write) as session:
            revision = (await session.initialize()).protocolVersion
            opened = session_id()
            offered = [tool.name for tool in (await session.list_tools()).tools]
            for name in tools:
                result = await session.call_tool(name, {})
                calls.append({"name": name, "isError": bool(result.isError), "text": result.content[0].text})
            same_session = session_id() == opened
    person.report(calls, revision=revision, offered=offered, sameSession=same_session)


anyio.run(main, *sys.argv[1:])
