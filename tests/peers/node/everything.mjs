// The reference server on an ephemeral port: everything.mjs stdio | sse PORT | streamableHttp PORT
//
// It reads its port from the environment and does not print it, so `listen` is intercepted.

import net from 'node:net';

const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (...where) {
    this.once('listening', () => console.log(`listening on ${this.address().port}`));
    return listen.apply(this, where);
};
process.env.PORT = process.argv[3] ?? '0';
await import('@modelcontextprotocol/server-everything/dist/index.js');
