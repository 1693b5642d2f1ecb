// The reference server, at a port that the system chooses: everything.mjs stdio | sse PORT | streamableHttp PORT
//
// It takes its port from the environment and does not say which one it got, so this listens in.

import net from 'node:net';

const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (...where) {
    this.once('listening', () => console.log(`listening on ${this.address().port}`));
    return listen.apply(this, where);
};
process.env.PORT = process.argv[3] ?? '0';
await import('@modelcontextprotocol/server-everything/dist/index.js');
