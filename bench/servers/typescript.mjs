// The official TypeScript skills server: `node typescript.mjs MODULES ROOT http|stdio`, where MODULES is the
// node_modules folder that holds @modelcontextprotocol/server.
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const [modules, root, transport] = process.argv.slice(2);
const find = createRequire(path.join(path.resolve(modules), 'here.cjs'));
const load = name => import(pathToFileURL(find.resolve(name)).href);
const { McpServer, createMcpHandler } = await load('@modelcontextprotocol/server');
const { serveStdio } = await load('@modelcontextprotocol/server/stdio');
const { loadSkills } = await load('@modelcontextprotocol/server/ext/skills/node');

const skills = await loadSkills(root, { cacheHint: { ttlMs: 60_000, cacheScope: 'public' } });

function build() {
    const mcp = new McpServer({ name: 'bench', version: '1.0.0' });
    skills.attach(mcp);
    return mcp;
}

async function answer(handler, incoming, outgoing) {
    const chunks = [];
    for await (const chunk of incoming) chunks.push(chunk);
    const request = new Request(`http://${incoming.headers.host}${incoming.url}`, {
        method: incoming.method,
        headers: incoming.headers,
        body: Buffer.concat(chunks)
    });
    const response = await handler.fetch(request);
    const body = Buffer.from(await response.arrayBuffer());
    outgoing.writeHead(response.status, {
        'content-type': response.headers.get('content-type') ?? 'application/json',
        'content-length': body.length
    });
    outgoing.end(body);
}

if (transport === 'stdio') {
    serveStdio(build);
} else {
    const handler = createMcpHandler(build);
    const listening = createServer((incoming, outgoing) => {
        answer(handler, incoming, outgoing).catch(error => outgoing.destroy(error));
    });
    listening.listen(0, '127.0.0.1', () => {
        process.stderr.write(`serving at http://127.0.0.1:${listening.address().port}/mcp\n`);
    });
}
