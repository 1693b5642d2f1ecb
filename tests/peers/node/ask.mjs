// Shared by ask1.mjs and ask2.mjs: answers to server requests, and the tools that send them. Prints the outcome per
// server as one line of JSON.

export const CAPABILITIES = { sampling: {}, elicitation: { form: {} }, roots: {} };

export const answers = {
    'sampling/createMessage': ({ messages }) => ({
        role: 'assistant',
        model: 'none',
        content: { type: 'text', text: `thoughts on ${messages[0].content.text ?? messages[0].content[0].text}` }
    }),
    'elicitation/create': () => ({ action: 'accept', content: { name: 'Ada', sure: true } }),
    'roots/list': () => ({ roots: [{ uri: 'file:///somewhere' }] })
};

const CALLS = [
    { name: 'echo', arguments: { message: 'héllo' } },
    { name: 'think', arguments: { prompt: 'bridges' } },
    { name: 'confirm', arguments: {} },
    { name: 'where', arguments: {} }
];

export async function main(connect) {
    const seen = [];
    for (const url of process.argv.slice(2)) {
        const peer = await connect(url);
        const said = { revision: peer.revision() };
        for (const params of CALLS) {
            const result = await peer.call(params);
            said[params.name] = `${result.isError ? 'failed: ' : ''}${result.content[0].text}`;
        }
        seen.push(said);
        await peer.close();
    }
    console.log(JSON.stringify(seen));
    process.exit(0);
}
