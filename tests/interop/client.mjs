// The official TypeScript client walks a server: everything it lists, every file of it, and what it must refuse.
//
// One argument, a JSON object: {era: "legacy" | "modern", url} or {era, command: [...], env}, and
// {refused: [{method, params}]} to ask for besides. Prints one JSON report; a digest there is of the bytes
// that arrived, after SkillsClient.read has checked them against the entry.
import { createHash } from 'node:crypto';

import { Client, ProtocolError, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { SkillsClient } from '@modelcontextprotocol/client/ext/skills';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

const asked = JSON.parse(process.argv[2]);
const options = { timeout: 20_000 };

// Results as they arrived, of methods the client has no schema for.
const anything = { '~standard': { version: 1, vendor: 'skillwire', validate: value => ({ value }) } };

function transport() {
    if (asked.url) return new StreamableHTTPClientTransport(new URL(asked.url));
    const [command, ...args] = asked.command;
    return new StdioClientTransport({ command, args, env: asked.env, stderr: 'inherit' });
}

// Every page of a paged method, at most a hundred.
async function pages(client, method, params = {}) {
    const results = [];
    let cursor;
    do {
        const result = await client.request({ method, params: { ...params, cursor } }, anything, options);
        results.push(result);
        cursor = result.nextCursor;
    } while (cursor !== undefined && results.length < 100);
    return results;
}

async function refusal(client, { method, params }) {
    try {
        return { result: await client.request({ method, params }, anything, options) };
    } catch (error) {
        if (!(error instanceof ProtocolError)) throw error;
        return { code: error.code, message: error.message, data: error.data ?? null };
    }
}

async function files(skills, entries) {
    const read = {};
    for (const entry of entries) {
        for (const { uri } of entry.resources) {
            const file = await skills.read(entry, uri, options);
            read[uri] = {
                digest: 'sha256:' + createHash('sha256').update(file.bytes).digest('hex'),
                size: file.bytes.length,
                mimeType: file.mimeType,
                isText: file.text !== undefined,
                verified: file.verified,
            };
        }
    }
    return read;
}

async function directories(skills, entries) {
    const found = {};
    const waiting = entries.map(entry => entry.uri.slice(0, -'/SKILL.md'.length));
    while (waiting.length > 0) {
        const uri = waiting.pop();
        if (uri in found) continue;
        const { resources } = await skills.readDirectory(uri, options);
        found[uri] = resources;
        waiting.push(...resources.filter(child => child.mimeType === 'inode/directory').map(child => child.uri));
    }
    return found;
}

async function walk(client) {
    const skills = new SkillsClient(client);
    const { skills: entries } = await skills.list(undefined, options);
    const got = [];
    for (const { uri } of entries) got.push((await skills.get(uri, options)).skill);
    const listing = await pages(client, 'skills/list');
    const resources = await pages(client, 'resources/list');
    return {
        protocolVersion: client.getNegotiatedProtocolVersion(),
        capabilities: client.getServerCapabilities(),
        supported: skills.supported,
        directoryRead: skills.directoryRead,
        entries,
        got,
        pages: listing.map(({ skills: page, ...rest }) => ({ ...rest, uris: page.map(entry => entry.uri) })),
        files: await files(skills, entries),
        directories: await directories(skills, entries),
        resourcePages: resources.map(page => page.resources),
        templates: (await client.listResourceTemplates(undefined, options)).resourceTemplates,
        refusals: await Promise.all(asked.refused.map(request => refusal(client, request))),
    };
}

const mode = asked.era === 'legacy' ? 'legacy' : 'auto';
const client = new Client({ name: 'skillwire-interop', version: '1.0.0' }, { versionNegotiation: { mode } });
await client.connect(transport(), options);
try {
    process.stdout.write(JSON.stringify(await walk(client)));
} finally {
    await client.close();
}
