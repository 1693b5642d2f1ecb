// An authorization server for the tests, on oidc-provider. Any name and password log in at its pages.
//
// Environment: PORT (0 or unset: chosen by the system), TTL of access tokens in seconds, FORMAT=opaque, KEY_ID (of the key
// that is made at each start), NO_SUB=1 (tokens of client credentials have no `sub`), DEFAULT_RESOURCE (whom tokens are for
// where a client names neither a resource nor a scope, as those of 2025-03-26), LATER_SCOPES=1 (clients may ask for scopes
// that they did not name when they registered). Prints `listening on ISSUER`.
import { generateKeyPairSync } from 'node:crypto';
import { createServer } from 'node:http';
import { Provider, errors } from 'oidc-provider';

const { PORT = '0', TTL = '300', FORMAT = 'jwt', KEY_ID = 'first', NO_SUB, DEFAULT_RESOURCE, LATER_SCOPES } = process.env;
const lifetime = Number(TTL);
const enabled = { enabled: true };
const scopes = ['mcp:read', 'mcp:write'];

// The issuer names its own port, so the socket comes first.
const server = createServer();
await new Promise((resolve) => server.listen(Number(PORT), '127.0.0.1', resolve));
const issuer = `http://127.0.0.1:${server.address().port}`;

function resourceServer(resource) {
  return {
    scope: scopes.join(' '),
    audience: resource,
    accessTokenTTL: lifetime,
    accessTokenFormat: FORMAT,
    jwt: { sign: { alg: 'RS256' } },
  };
}

const isLoopback = (resource) => ['127.0.0.1', 'localhost'].includes(new URL(resource).hostname);

const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
const signingKey = { ...privateKey.export({ format: 'jwk' }), kid: KEY_ID, alg: 'RS256', use: 'sig' };

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: 'rialto',
      client_secret: 'rialto-secret',
      redirect_uris: ['http://127.0.0.1:9/callback'],
      grant_types: ['authorization_code', 'refresh_token', 'client_credentials'],
      scope: ['openid', 'offline_access', ...scopes].join(' '),
    },
    {
      client_id: 'desktop',
      redirect_uris: ['http://127.0.0.1:9/callback'],
      token_endpoint_auth_method: 'none',
      application_type: 'native',
      grant_types: ['authorization_code', 'refresh_token'],
      scope: ['openid', 'offline_access', ...scopes].join(' '),
    },
  ],
  scopes: ['openid', 'offline_access', ...scopes],
  extraClientMetadata: {
    properties: ['later_scopes'],
    validator: (context, name, value, metadata) => {
      if (LATER_SCOPES) metadata.scope = ['openid', 'offline_access', ...scopes].join(' ');
    },
  },
  jwks: { keys: [signingKey] },
  cookies: { keys: ['only for tests'] },
  ttl: { AccessToken: lifetime, ClientCredentials: lifetime, IdToken: lifetime },
  pkce: { required: () => true },
  issueRefreshToken: (context, client) => client.grantTypeAllowed('refresh_token'),
  features: {
    registration: enabled,
    clientCredentials: enabled,
    revocation: enabled,
    introspection: { ...enabled, allowedPolicy: () => true },
    resourceIndicators: {
      ...enabled,
      useGrantedResource: () => true,
      defaultResource: () => DEFAULT_RESOURCE,
      getResourceServerInfo: (context, resource) => {
        if (!isLoopback(resource)) throw new errors.InvalidTarget();
        return resourceServer(resource);
      },
    },
  },
  formats: {
    customizers: {
      jwt: (context, token, parts) => {
        if (NO_SUB && token.kind === 'ClientCredentials') delete parts.payload.sub;
      },
    },
  },
  // A page may redeem the codes that are sent to it.
  clientBasedCORS: (context, origin, client) => client.redirectUris.some((uri) => new URL(uri).origin === origin),
  findAccount: (context, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  extraTokenClaims: (context, token) => ({
    name: token.accountId,
    roles: token.accountId === 'bob' ? ['staff'] : ['staff', 'admins'],
  }),
});

// Each request is one line on stderr, so that a test can count them.
const answer = provider.callback();
server.on('request', (request, response) => {
  const path = request.url.split('?')[0];
  console.error(`${request.method} ${path}`);
  // Pages register themselves, which oidc-provider does not let them.
  if (path === '/reg' && request.headers.origin) {
    response.setHeader('access-control-allow-origin', request.headers.origin);
    response.setHeader('access-control-allow-headers', 'content-type, mcp-protocol-version');
    if (request.method === 'OPTIONS') return response.writeHead(204).end();
  }
  if (DEFAULT_RESOURCE && path === '/auth' && !/[?&]scope=/.test(request.url)) request.url += `&scope=${scopes[0]}`;
  answer(request, response);
});
console.log(`listening on ${issuer}`);
