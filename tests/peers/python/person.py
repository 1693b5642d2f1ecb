"""A person at a client that logs in by itself: keeps what the SDK gives it, and fills in the pages of the authorization
server in place of a browser. Both generations of the Python SDK use it, each with the HTTP client that it comes with.
"""

from __future__ import annotations

import json
import re
from html import unescape
from urllib.parse import parse_qs, urljoin, urlsplit

from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

CALLBACK = "http://127.0.0.1:9/callback"
MAX_STEPS = 30

METADATA = OAuthClientMetadata.model_validate({
    "client_name": "a client of the tests",
    "redirect_uris": [CALLBACK],
    "grant_types": ["authorization_code"],
    "token_endpoint_auth_method": "none",
    # Version 1 does not know it and leaves it out.
    "application_type": "native",
})


def attribute(tag: str, name: str) -> str | None:
    found = re.search(rf'\s{name}="([^"]*)"', tag)
    return unescape(found[1]) if found else None


class Person:
    """The storage of the SDK's OAuth client, and its redirect handler. `new_browser` makes an HTTP client with cookies."""

    def __init__(self, user: str, client_id: str, new_browser) -> None:
        self.user = user
        self.new_browser = new_browser
        self.asked_scopes: list[str | None] = []
        self.sent: dict[str, str] = {}
        self.token: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None
        # Without an id (`-`) the SDK registers itself.
        if client_id != "-":
            self.client = OAuthClientInformationFull(
                client_id=client_id, redirect_uris=[CALLBACK], token_endpoint_auth_method="none"
            )

    async def get_tokens(self) -> OAuthToken | None:
        return self.token

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.token = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info

    async def log_in(self, url: str) -> None:
        """Follows redirects and posts forms until the code is sent to the callback; keeps the parameters of that."""
        self.asked_scopes.append(parse_qs(urlsplit(url).query).get("scope", [None])[0])
        async with self.new_browser() as browser:
            page = await browser.get(url)
            for _ in range(MAX_STEPS):
                if location := page.headers.get("location"):
                    target = urljoin(str(page.url), location)
                    if target.startswith(CALLBACK):
                        self.sent = {name: values[0] for name, values in parse_qs(urlsplit(target).query).items()}
                        return
                    page = await browser.get(target)
                    continue
                form = re.search(r'(<form[^>]*method="post"[^>]*>)(.*?)</form', page.text, re.I | re.S)
                if not form:
                    raise RuntimeError(f"no form at {page.url}: {page.status_code} {page.text}")
                fields = {}
                for tag in re.findall(r"<input[^>]*>", form[2]):
                    if name := attribute(tag, "name"):
                        given = {"login": self.user, "password": "any"}.get(name)
                        fields[name] = given or attribute(tag, "value") or ""
                page = await browser.post(urljoin(str(page.url), attribute(form[1], "action") or ""), data=fields)
        raise RuntimeError(f"no code after {MAX_STEPS} steps")

    def report(self, calls: list[dict], **more: object) -> None:
        """Prints what happened as one line of JSON."""
        assert self.client
        report = {"calls": calls, "askedScopes": self.asked_scopes, "clientId": self.client.client_id}
        print(json.dumps({**report, **more}))
