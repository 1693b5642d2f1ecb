"""canaille as a second authorization server for the tests: opaque tokens, `aud` = client id, `exp` with a fraction.

Listens on a port that the system chooses and prints `listening on ISSUER`. The client `rialto` with the secret
`rialto-secret` gets tokens by client credentials; `ann` logs in with the password `correct horse`. Each request is one
line on stderr.
"""

import datetime
import logging
import socket
import sys

from canaille import create_app
from canaille.app import models
from canaille.backends import Backend
from joserfc.jwk import RSAKey
from werkzeug.serving import make_server

listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
key = RSAKey.generate_key(2048, {"kid": "canaille", "alg": "RS256", "use": "sig"}, private=True)
app = create_app(
    {
        "SECRET_KEY": "only for tests",
        "SERVER_NAME": f"127.0.0.1:{port}",
        "PREFERRED_URL_SCHEME": "http",
        "SESSION_COOKIE_SECURE": False,
        "CANAILLE": {"DATABASE": "memory", "JAVASCRIPT": False, "HTMX": False},
        "CANAILLE_OIDC": {
            "DYNAMIC_CLIENT_REGISTRATION_OPEN": True,
            "REQUIRE_NONCE": False,
            "ACTIVE_JWKS": [key.as_dict(private=True)],
        },
    }
)
with app.app_context():
    Backend.instance.save(
        models.User(
            user_name="ann",
            password="correct horse",
            given_name="Ann",
            family_name="Example",
            formatted_name="Ann Example",
            emails=["ann@example.org"],
        )
    )
    client = models.Client(
        client_id="rialto",
        client_id_issued_at=datetime.datetime.now(datetime.timezone.utc),
        client_secret="rialto-secret",
        client_name="Rialto",
        redirect_uris=["http://127.0.0.1:9/callback"],
        grant_types=["authorization_code", "refresh_token", "client_credentials"],
        response_types=["code"],
        scope=["openid", "profile", "email"],
        token_endpoint_auth_method="client_secret_basic",
        client_uri="http://127.0.0.1:9/",
    )
    Backend.instance.save(client)
    client.audience = [client]
    Backend.instance.save(client)


def counted(environ, start_response):
    print(environ["REQUEST_METHOD"], environ["PATH_INFO"], file=sys.stderr, flush=True)
    return app.wsgi_app(environ, start_response)


logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = make_server("127.0.0.1", port, counted, threaded=True, fd=listener.fileno())
print(f"listening on http://127.0.0.1:{port}", flush=True)
server.serve_forever()
