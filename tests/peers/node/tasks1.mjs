// Client with tasks, on @modelcontextprotocol/sdk 1.x: tasks1.mjs URL TOOL... Calls each tool as a task, follows the task
// to its end and prints what it was told as one line of JSON.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import * as types from '@modelcontextprotocol/sdk/types.js';
import { CLIENT_INFO } from './scenario.mjs';

const [url, ...tools] = process.argv.slice(2);
const client = new Client(CLIENT_INFO, { capabilities: { elicitation: { form: {} } } });
let asked = [];
client.setRequestHandler(types.ElicitRequestSchema, async ({ params }) => {
    asked.push(params._meta?.['io.modelcontextprotocol/related-task']?.taskId);
    return { action: 'accept', content: { confirm: true } };
});
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const offered = (await client.listTools()).tools;

const seen = [];
for (const name of tools) {
    asked = [];
    const report = { name, support: offered.find(tool => tool.name === name)?.execution?.taskSupport, told: [] };
    const options = { task: { ttl: 60_000 } };
    const stream = client.experimental.tasks.callToolStream({ name, arguments: {} }, types.CallToolResultSchema, options);
    for await (const message of stream) {
        report.told.push(message.type);
        if (message.type === 'taskCreated') report.taskId = message.task.taskId;
        if (message.type === 'result') report.text = message.result.content[0].text;
        if (message.type === 'error') report.error = message.error.message;
    }
    if (report.taskId) report.status = (await client.experimental.tasks.getTask(report.taskId)).status;
    seen.push({ ...report, asked });
}
console.log(JSON.stringify({ tasks: client.getServerCapabilities().tasks, seen }));
process.exit(0);
