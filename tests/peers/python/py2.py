"""Peer on mcp 2.x, over Streamable HTTP, HTTP+SSE and stdio.

Without PEER_REVISION it probes for 2026-07-28 and falls back to the handshake, as the SDK does by default (`auto` is
the same); a handshake revision is proposed in a handshake, and 2026-07-28 is pinned.
"""

from __future__ import annotations

import logging
import sys

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from typing import Any, AsyncIterator

import anyio
import mcp_types as types
from mcp import Client
from mcp.client.subscriptions import ResourceUpdated
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from scenario import (
    CLIENT_INFO,
    FORM,
    REQUEST_SECONDS,
    WANTED_REVISION,
    Inbox,
    Outbox,
    Peer,
    Unsupported,
    main,
    open_transport,
    wire,
)

LOG_LEVEL = "io.modelcontextprotocol/logLevel"


class Session(Peer):
    def __init__(self, client: Client, logs: Inbox, updates: Inbox):
        self._client = client
        self._modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
        self.revision = client.protocol_version
        self.logs = logs
        self.updates = updates
        if client.mode in MODERN_PROTOCOL_VERSIONS:
            # A pinned client sends no server/discover, so it has no server info.
            self.server = self.capabilities = self.instructions = "unsupported"
        else:
            self.server = wire(client.server_info) if client.server_info else None
            self.capabilities = wire(client.server_capabilities)
            self.instructions = client.instructions

    async def list(self, what: str, cursor: str | None) -> dict[str, Any]:
        call = {
            "tools": self._client.list_tools,
            "resources": self._client.list_resources,
            "resourceTemplates": self._client.list_resource_templates,
            "prompts": self._client.list_prompts,
        }[what]
        return wire(await call(cursor=cursor))

    async def call(self, name: str, arguments: dict[str, Any], **options: Any) -> dict[str, Any]:
        return wire(await self._client.call_tool(name, arguments, **options))

    async def read(self, uri: str) -> dict[str, Any]:
        return wire(await self._client.read_resource(uri))

    async def prompt(self, name: str, arguments: dict[str, str]) -> dict[str, Any]:
        return wire(await self._client.get_prompt(name, arguments))

    async def complete(self, prompt: str, argument: dict[str, str]) -> dict[str, Any]:
        return wire(await self._client.complete(types.PromptReference(name=prompt), argument))

    async def set_level(self, level: str) -> dict[str, Any]:
        # The log level belongs to the session in the handshake era and to each request in the per-request era.
        if self._modern:
            return {"meta": {LOG_LEVEL: level}}
        await self._client.set_logging_level(level)
        return {}

    @asynccontextmanager
    async def watch(self, uri: str) -> AsyncIterator[None]:
        if not self._modern:
            await self._client.subscribe_resource(uri)
            yield
            await self._client.unsubscribe_resource(uri)
            return
        async with self._client.listen(resource_subscriptions=[uri]) as events, anyio.create_task_group() as tasks:

            async def forward() -> None:
                async for event in events:
                    if isinstance(event, ResourceUpdated):
                        self.updates.push(event.uri)

            tasks.start_soon(forward)
            yield
            tasks.cancel_scope.cancel()

    async def ping(self) -> None:
        if self._modern:
            raise Unsupported
        await self._client.send_ping()


@asynccontextmanager
async def asking_for(revision: str, transport: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
    async with transport as (incoming, outgoing):
        yield incoming, Outbox(outgoing, revision)


@asynccontextmanager
async def connect(kind: str, target: list[str]) -> AsyncIterator[Peer]:
    logs, updates = Inbox(), Inbox()

    async def on_log(params: types.LoggingMessageNotificationParams) -> None:
        logs.push(wire(params))

    async def on_form(_: Any, __: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content=FORM)

    async def on_sample(_: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        content = params.messages[0].content
        asked = content[0] if isinstance(content, list) else content
        said = types.TextContent(type="text", text=f"thoughts on {asked.text}")
        return types.CreateMessageResult(role="assistant", model="none", content=said)

    async def on_message(message: Any) -> None:
        if isinstance(message, Exception):
            logging.warning("%s", message)
        elif isinstance(message, types.ResourceUpdatedNotification):
            # In 2026-07-28 this duplicates the notification of the listen stream.
            if client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
                updates.push(str(message.params.uri))

    transport = open_transport(kind, target)
    mode = WANTED_REVISION
    if mode != "auto" and mode not in MODERN_PROTOCOL_VERSIONS:
        transport = asking_for(mode, transport)
        mode = "legacy"
    info = types.Implementation(**CLIENT_INFO)
    client = Client(
        transport,
        mode=mode,
        read_timeout_seconds=REQUEST_SECONDS,
        logging_callback=on_log,
        elicitation_callback=on_form,
        sampling_callback=on_sample,
        message_handler=on_message,
        client_info=info,
    )
    async with client:
        yield Session(client, logs, updates)


main("mcp", version("mcp"), connect)
