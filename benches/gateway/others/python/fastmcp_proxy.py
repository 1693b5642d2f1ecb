"""fastmcp as a proxy: fastmcp_proxy.py URL PORT MODE fresh|shared

`fresh` opens an upstream session per request, the default of fastmcp; `shared` uses one upstream session for all
requests. MODE is the era of the upstream: `legacy`, or a revision.
"""

import asyncio
import sys

from fastmcp import Client
from fastmcp.server import create_proxy


async def main(url: str, port: str, mode: str, sessions: str) -> None:
    async def serve(target, **settings) -> None:
        proxy = create_proxy(target, name="proxy", **settings)
        await proxy.run_http_async(
            host="127.0.0.1",
            port=int(port),
            show_banner=False,
            log_level="error",
            uvicorn_config={"access_log": False},
        )

    if sessions == "fresh":
        await serve(url, mode=mode)
    else:
        async with Client(url, mode=mode) as client:
            await serve(client)


asyncio.run(main(*sys.argv[1:]))
