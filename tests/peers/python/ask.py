"""Shared by ask1.py and ask2.py: the tools that send server requests, and the report."""

from __future__ import annotations

import json
import sys
from typing import Any, AsyncIterator, Callable

import anyio

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("echo", {"message": "héllo"}),
    ("think", {"prompt": "bridges"}),
    ("confirm", {}),
    ("where", {}),
]
FORM = {"name": "Ada", "sure": True}
ROOT = "file:///somewhere"


def main(connect: Callable[[str], AsyncIterator[Any]]) -> None:
    """Runs against every URL given; `connect` yields the revision and a function that calls a tool."""

    async def run() -> None:
        seen = []
        for url in sys.argv[1:]:
            async with connect(url) as (revision, call):
                said = {"revision": revision}
                for name, arguments in CALLS:
                    failed, text = await call(name, arguments)
                    said[name] = f"failed: {text}" if failed else text
            seen.append(said)
        print(json.dumps(seen))

    anyio.run(run)


def thought(content: Any) -> str:
    """The sampling result for a message."""
    block = content[0] if isinstance(content, list) else content
    return f"thoughts on {block.text}"
