"""Peer on mcp 1.x: the handshake revisions, over Streamable HTTP, HTTP+SSE and stdio."""

from __future__ import annotations

import logging
import sys

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

from contextlib import asynccontextmanager
from datetime import timedelta
from importlib.metadata import version
from typing import Any, AsyncIterator

from mcp import ClientSession, types
from pydantic import AnyUrl

from scenario import (
    CLIENT_INFO,
    FORM,
    REQUEST_SECONDS,
    WANTED_REVISION,
    Inbox,
    Outbox,
    Peer,
    main,
    open_transport,
    wire,
)


class Session(Peer):
    def __init__(
        self, session: ClientSession, outbox: Outbox, opening: types.InitializeResult, logs: Inbox, updates: Inbox
    ):
        self._session = session
        self._outbox = outbox
        self.revision = str(opening.protocolVersion)
        self.server = wire(opening.serverInfo)
        self.capabilities = wire(opening.capabilities)
        self.instructions = opening.instructions
        self.logs = logs
        self.updates = updates

    async def list(self, what: str, cursor: str | None) -> dict[str, Any]:
        call = {
            "tools": self._session.list_tools,
            "resources": self._session.list_resources,
            "resourceTemplates": self._session.list_resource_templates,
            "prompts": self._session.list_prompts,
        }[what]
        return wire(await call(params=types.PaginatedRequestParams(cursor=cursor)))

    async def call(self, name: str, arguments: dict[str, Any], **options: Any) -> dict[str, Any]:
        return wire(await self._session.call_tool(name, arguments, **options))

    async def read(self, uri: str) -> dict[str, Any]:
        return wire(await self._session.read_resource(AnyUrl(uri)))

    async def prompt(self, name: str, arguments: dict[str, str]) -> dict[str, Any]:
        return wire(await self._session.get_prompt(name, arguments))

    async def complete(self, prompt: str, argument: dict[str, str]) -> dict[str, Any]:
        ref = types.PromptReference(type="ref/prompt", name=prompt)
        return wire(await self._session.complete(ref, argument))

    async def set_level(self, level: str) -> dict[str, Any]:
        await self._session.set_logging_level(level)
        return {}

    @asynccontextmanager
    async def watch(self, uri: str) -> AsyncIterator[None]:
        await self._session.subscribe_resource(AnyUrl(uri))
        yield
        await self._session.unsubscribe_resource(AnyUrl(uri))

    async def ping(self) -> None:
        await self._session.send_ping()

    async def after_cancel(self) -> None:
        # This SDK drops a cancelled request without notifying the server.
        params = types.CancelledNotificationParams(requestId=self._outbox.last_id, reason="seen enough")
        await self._session.send_notification(types.ClientNotification(types.CancelledNotification(params=params)))


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
        elif isinstance(message, types.ServerNotification):
            if isinstance(message.root, types.ResourceUpdatedNotification):
                updates.push(str(message.root.params.uri))

    async with open_transport(kind, target) as (incoming, outgoing, *_):
        outbox = Outbox(outgoing, WANTED_REVISION)
        info = types.Implementation(**CLIENT_INFO)
        async with ClientSession(
            incoming,
            outbox,
            read_timeout_seconds=timedelta(seconds=REQUEST_SECONDS),
            logging_callback=on_log,
            elicitation_callback=on_form,
            sampling_callback=on_sample,
            message_handler=on_message,
            client_info=info,
        ) as session:
            yield Session(session, outbox, await session.initialize(), logs, updates)


main("mcp", version("mcp"), connect)
