// The official TypeScript SDK as an honest peer that says what it was asked: `node observed.mjs OPTIONS`, in JSON.
//   folder    the skills
//   log       a file to which every message that comes in is added, as a line
//   bell      a file; whenever it changes, the folder is read again and clients are told, or, if it says "forget",
//             all sessions are lost, as in a restart
//   era       the one generation it speaks: "legacy", with sessions over HTTP, "stateless", without, or "modern"
//   http      whether to take a free port, and write its URL to standard error, instead of speaking over stdio
//   base      serve from a source of its own under this URI, instead of from a catalog of the SDK
//   unlisted  the skill paths which that source does not list
import { randomUUID } from 'node:crypto';
import { appendFileSync, existsSync, readdirSync, readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { join, relative } from 'node:path';
import { buffer } from 'node:stream/consumers';

import {
    createMcpHandler,
    legacyStatelessFallback,
    McpServer,
    WebStandardStreamableHTTPServerTransport
} from '@modelcontextprotocol/server';
import { skillEntry, SkillsExtension } from '@modelcontextprotocol/server/ext/skills';
import { loadSkills } from '@modelcontextprotocol/server/ext/skills/node';
import { serveStdio, StdioServerTransport } from '@modelcontextprotocol/server/stdio';

const { folder, log, bell, era, http, base, unlisted = [] } = JSON.parse(process.argv[2]);
const POLL = 50;
const PAGE = 2;

const cacheHint = { ttlMs: 60_000, cacheScope: 'public' };
const skills = base ? await ownSource() : await loadSkills(folder, { pageSize: PAGE, cacheHint });
const handler = createMcpHandler(newServer, { legacy: 'reject' });
const fallback = legacyStatelessFallback(newServer);
const sessions = new Map();

function newServer() {
    const mcp = new McpServer({ name: 'observed', version: '1.0.0' });
    skills.attach(mcp);
    return mcp;
}

// A source that lists some of its skills, and calls every file something else than Markdown.
async function ownSource() {
    const found = readdirSync(folder, { recursive: true, withFileTypes: true });
    const paths = found.filter(entry => entry.isFile()).map(entry => relative(folder, join(entry.parentPath, entry.name)));
    const entries = new Map();
    for (const path of paths.filter(path => path.endsWith('/SKILL.md'))) {
        const root = path.slice(0, -'/SKILL.md'.length);
        const own = paths.filter(file => file.startsWith(`${root}/`));
        const files = own.map(file => [file.slice(root.length + 1), readFileSync(join(folder, file))]);
        entries.set(root, await skillEntry(root, Object.fromEntries(files), { baseUri: base }));
    }
    const all = [...entries.values()];
    const source = {
        list: async () => ({ skills: [...entries].filter(([root]) => !unlisted.includes(root)).map(([, entry]) => entry) }),
        get: async uri => all.find(entry => entry.uri === uri),
        read: async uri => {
            if (!all.some(entry => entry.resources.some(file => file.uri === uri))) return undefined;
            const text = readFileSync(join(folder, decodeURIComponent(uri.slice(base.length))), 'utf8');
            return { text, mimeType: 'application/x-unheard-of' };
        }
    };
    return new SkillsExtension({ source, baseUri: base, cacheHint });
}

function note(text) {
    for (const line of text.split('\n')) if (line.trim()) appendFileSync(log, `${JSON.stringify(JSON.parse(line))}\n`);
}

async function withSession(request) {
    const id = request.headers.get('mcp-session-id');
    if (sessions.has(id)) return sessions.get(id).handleRequest(request);
    if (id) return new Response('no such session', { status: 404 });
    const transport = new WebStandardStreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized: created => void sessions.set(created, transport),
        onsessionclosed: closed => void sessions.delete(closed)
    });
    await newServer().connect(transport);
    return transport.handleRequest(request);
}

const SPEAKERS = { legacy: withSession, stateless: fallback, modern: handler.fetch };

async function answer(request, response) {
    const body = request.method === 'POST' ? await buffer(request) : undefined;
    if (body) note(body.toString());
    const gone = new AbortController();
    response.on('close', () => gone.abort());
    const url = new URL(request.url, `http://${request.headers.host}`);
    const { method, headers } = request;
    const answered = await SPEAKERS[era](new Request(url, { method, headers, body, signal: gone.signal }));
    response.writeHead(answered.status, Object.fromEntries(answered.headers));
    response.flushHeaders();
    for await (const chunk of answered.body ?? []) response.write(chunk);
    response.end();
}

function overHttp() {
    const server = createServer((request, response) => {
        answer(request, response).catch(error => {
            if (!response.destroyed) console.error(error);
            response.destroy();
        });
    });
    server.listen(0, '127.0.0.1', () => {
        console.error(`serving at http://127.0.0.1:${server.address().port}/mcp`);
    });
}

async function overStdio() {
    let rest = '';
    process.stdin.on('data', chunk => {
        const lines = (rest + chunk).split('\n');
        rest = lines.pop();
        note(lines.join('\n'));
    });
    if (era === 'modern') serveStdio(newServer, { legacy: 'reject' });
    else await newServer().connect(new StdioServerTransport());
}

function rungAt() {
    return existsSync(bell) ? readFileSync(bell, 'utf8') : '';
}

function listenForBell() {
    let rung = rungAt();
    setInterval(async () => {
        if (rungAt() === rung) return;
        rung = rungAt();
        if (rung.startsWith('forget')) {
            sessions.clear();
        } else {
            const changes = await skills.reload();
            if (changes.listChanged) handler.notify.resourcesChanged();
        }
        appendFileSync(log, `${JSON.stringify({ rung })}\n`);
    }, POLL).unref();
}

if (bell) listenForBell();
if (http) overHttp();
else await overStdio();
