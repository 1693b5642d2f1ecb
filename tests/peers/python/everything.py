"""The Python SDK's own server for the conformance suite, unchanged: everything.py stdio | http PORT.

Only the source package of the SDK has it; setup.sh extracts it beside the environment.
"""

from __future__ import annotations

import sys

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

import warnings
from pathlib import Path

import anyio

# Logging, sampling and roots are deprecated in 2026-07-28 and still tested.
warnings.simplefilter("ignore")
sys.path.insert(0, str(Path(sys.prefix).parent / "everything"))

from mcp_everything_server.server import event_store, mcp

from offers import command


def over_http():
    return mcp.streamable_http_app(event_store=event_store, retry_interval=100)


async def main() -> None:
    await command(mcp.run_stdio_async, http=over_http)


anyio.run(main)
