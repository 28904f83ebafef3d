// The official TypeScript SDK serving a folder of skills: `node official.mjs FOLDER [--http] [--lie | --shout]`.
// Over HTTP it takes a free port and writes its URL to standard error, otherwise it speaks over stdio.
// So that a test can see a tool object, --lie gives one file another's digest, and --shout writes all digests
// in capitals. Both work over HTTP only.
import { createServer } from 'node:http';
import { buffer } from 'node:stream/consumers';

import { createMcpHandler, McpServer } from '@modelcontextprotocol/server';
import { loadSkills } from '@modelcontextprotocol/server/ext/skills/node';
import { serveStdio } from '@modelcontextprotocol/server/stdio';

const [folder, ...flags] = process.argv.slice(2);
const catalog = await loadSkills(folder, { pageSize: 5, cacheHint: { ttlMs: 60_000, cacheScope: 'public' } });

function newServer() {
    const mcp = new McpServer({ name: 'official', version: '1.0.0' });
    catalog.attach(mcp);
    return mcp;
}

const [first, second] = catalog.entries.map(entry => entry.resources.at(-1).digest);
function told(text) {
    if (flags.includes('--lie')) return text.replaceAll(first, second);
    if (flags.includes('--shout')) return text.replace(/(?<=sha256:)[0-9a-f]{64}/g, hex => hex.toUpperCase());
    return text;
}

async function answer(handler, request, response) {
    const body = request.method === 'POST' ? await buffer(request) : undefined;
    const url = new URL(request.url, `http://${request.headers.host}`);
    const asked = new Request(url, { method: request.method, headers: request.headers, body });
    const answered = await handler.fetch(asked);
    response.writeHead(answered.status, Object.fromEntries(answered.headers));
    const decoder = new TextDecoder();
    for await (const chunk of answered.body ?? []) response.write(told(decoder.decode(chunk, { stream: true })));
    response.end();
}

if (flags.includes('--http')) {
    const handler = createMcpHandler(newServer);
    const server = createServer((request, response) => {
        answer(handler, request, response).catch(error => {
            console.error(error);
            response.destroy();
        });
    });
    server.listen(0, '127.0.0.1', () => {
        console.error(`serving ${catalog.entries.length} skills at http://127.0.0.1:${server.address().port}/mcp`);
    });
} else {
    serveStdio(newServer);
}
