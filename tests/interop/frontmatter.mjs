// Reads a JSON array of {path, base64} from standard input, one SKILL.md each, and prints for each what
// the official SDK and the `yaml` package make of its frontmatter: {"value": …} or {"error": "…"}.
import { text } from 'node:stream/consumers';

import { SkillCatalogError, skillEntry } from '@modelcontextprotocol/server/ext/skills';
import { parseDocument } from 'yaml';

async function officialSdk(path, bytes) {
    try {
        const entry = await skillEntry(path, { 'SKILL.md': bytes });
        return { value: entry.frontmatter };
    } catch (error) {
        if (!(error instanceof SkillCatalogError)) throw error;
        return { error: error.problems.map(problem => problem.message).join('; ') };
    }
}

function npmYaml(bytes) {
    const block = frontmatterOf(bytes);
    if (block === undefined) return { error: 'no frontmatter block' };
    const document = parseDocument(block, { version: '1.2', schema: 'core', merge: false, strict: true });
    const problems = [...document.errors, ...document.warnings];
    if (problems.length > 0) return { error: problems.map(problem => problem.message).join('; ') };
    try {
        return { value: document.toJS() ?? null };
    } catch (error) {
        return { error: error.message }; // an alias without its anchor shows only now
    }
}

// The lines between the two `---` lines. Only \n and \r\n end a line here, whatever JavaScript's own ^ and $ think.
function frontmatterOf(bytes) {
    const lines = new TextDecoder().decode(bytes).split('\n');
    const isMarker = line => /^---[ \t]*\r?$/.test(line);
    if (!isMarker(lines[0])) return undefined;
    const end = lines.findIndex((line, index) => index > 0 && isMarker(line));
    return end === -1 ? undefined : lines.slice(1, end).map(line => line + '\n').join('');
}

const answers = [];
for (const { path, base64 } of JSON.parse(await text(process.stdin))) {
    const bytes = new Uint8Array(Buffer.from(base64, 'base64'));
    answers.push({ sdk: await officialSdk(path, bytes), yaml: npmYaml(bytes) });
}
process.stdout.write(JSON.stringify(answers));
