"""Every method of a server over a catalog agrees on which skills a caller may see, whatever is done."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import orjson
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from folders import skill_md
from integration.access_world import Heard, listening
from integration.catalog.catalog_world import drop_database, new_database, rows_after
from integration.catalog.publishing_world import Files, Publisher, World, a_world, as_json, draft_of
from skillwire.catalog import SkillRow
from skillwire.catalog.changes import lines_in

pytestmark = pytest.mark.requirement("SEC-14")

PATHS = ("a/x/m", "a/x/n", "a/y/o", "a/y", "ab/m", "ab/x/p", "a/x/m/q", "b/m", "c")
PLACES = ("*", "a", "a/x", "a/y", "a/x/m", "ab", "ab/x", "b", "c", "a/x/m/q", "nowhere")
CALLERS = ("reader", "publisher", "admin")
SKILLS = {f"skill://{path}/SKILL.md" for path in PATHS}

places = st.lists(st.sampled_from(PLACES), min_size=1, max_size=2, unique=True)
readers, publishers = st.fixed_dictionaries({"see": places}), st.fixed_dictionaries({"publish": places})
admins = st.fixed_dictionaries({"manage": places}, optional={"see": places, "publish": places})


@dataclass(frozen=True, slots=True)
class Step:
    """What a caller tries to do."""

    caller: str
    action: str
    paths: Sequence[str]
    body: str
    is_listed: bool
    version: str


steps = st.builds(
    Step,
    caller=st.sampled_from(("root", "publisher", "publisher", "admin", "admin")),
    action=st.sampled_from(("publish", "publish", "publish", "unpublish", "rollback")),
    paths=st.lists(st.sampled_from(PATHS), min_size=1, max_size=3, unique=True),
    body=st.sampled_from(("One.\n", "Two.\n")),
    is_listed=st.sampled_from((True, True, False)),
    version=st.sampled_from(("", "", "1.0.0")),
)
# Most skills are there from the beginning, so that there is something to decide about.
beginnings = st.builds(
    Step,
    caller=st.just("root"),
    action=st.just("publish"),
    paths=st.lists(st.sampled_from(PATHS), min_size=6, unique=True),
    body=st.just("Zero.\n"),
    is_listed=st.just(True),
    version=st.sampled_from(("", "1.0.0")),
)
scenarios = st.tuples(
    st.tuples(readers, publishers, admins),
    st.tuples(beginnings, st.lists(steps, max_size=5)).map(lambda found: [found[0], *found[1]]),
)
Rule = dict[str, list[str]]
Scenario = tuple[tuple[Rule, Rule, Rule], list[Step]]


def rules_text(rights: Sequence[Rule]) -> str:
    text = '[[rule]]\ntokens = ["root"]\nmanage = ["*"]\n'
    for name, rule in zip(CALLERS, rights, strict=True):
        if rule:
            keys = "".join(f"{key} = {orjson.dumps(value).decode()}\n" for key, value in rule.items())
            text += f'[[rule]]\ntokens = ["{name}"]\n{keys}'
    return text


def version_of(uri: str) -> str:
    """Return the URI of the immutable version of a skill."""
    above, _, name = uri.removesuffix("/SKILL.md").rpartition("/")
    return f"{above}/v1.0.0/{name}/SKILL.md"


EVER = SKILLS | {version_of(uri) for uri in SKILLS}


def covers(directories: Sequence[str], uri: str) -> bool:
    """Decide as the documentation of rules says, with nothing of the code that is tested."""
    path = uri.removeprefix("skill://").removesuffix("/SKILL.md")
    return any(one == "*" or path == one or path.startswith(f"{one}/") for one in directories)


def allowed(rule: Rule, *keys: str) -> list[str]:
    return [directory for key in keys for directory in rule.get(key, [])]


# What each method tells


async def asked(caller: Publisher, method: str, **params: Any) -> dict[str, Any]:
    answer = await caller.ask(method, **params)
    assert answer.status in (200, 400), answer
    return orjson.loads(answer.raw)


async def pages(caller: Publisher, method: str, key: str, **params: Any) -> list[dict[str, Any]]:
    """Return the items of all pages; none when there is no such thing."""
    found: list[dict[str, Any]] = []
    more: dict[str, Any] = {}
    while True:
        answer = await asked(caller, method, **params, **more)
        if "error" in answer:
            assert not more
            return []
        found += answer["result"][key]
        if "nextCursor" not in answer["result"]:
            return found
        more = {"cursor": answer["result"]["nextCursor"]}


async def listed(caller: Publisher, method: str, key: str) -> set[str]:
    items = [item["uri"] for item in await pages(caller, method, key)]
    assert len(set(items)) == len(items)
    return set(items)


async def answered(caller: Publisher, method: str, uris: set[str]) -> set[str]:
    """Return the URIs at which a method finds something."""
    return {uri for uri in uris if "result" in await asked(caller, method, uri=uri)}


async def in_directories(caller: Publisher) -> set[str]:
    found: set[str] = set()
    waiting = [f"skill://{name}" for name in ("a", "ab", "b", "c", "nowhere", "v1.0.0")]
    while waiting:
        for item in await pages(caller, "resources/directory/read", "resources", uri=waiting.pop()):
            if item["mimeType"] == "inode/directory":
                waiting.append(item["uri"])
            else:
                found.add(item["uri"])
    return found


async def completed(caller: Publisher) -> set[str]:
    found: set[str] = set()
    waiting = [""]
    while waiting:
        argument = {"name": "path", "value": waiting.pop()}
        ref = {"type": "ref/resource", "uri": "skill://{+path}"}
        answer = await asked(caller, "completion/complete", ref=ref, argument=argument)
        for value in answer["result"]["completion"]["values"]:
            if value.endswith("/"):
                waiting.append(value)
            else:
                found.add(f"skill://{value}")
    return found


async def searched(caller: Publisher) -> set[str]:
    answer = await asked(
        caller, "tools/call", name="find_skills", arguments={"query": "testing", "limit": 50}
    )
    return {item["uri"] for item in answer["result"]["content"] if item["type"] == "resource_link"}


async def require_agreement(
    caller: Publisher, rows: Sequence[SkillRow], rule: Rule, files_ever: set[str]
) -> None:
    """Check that a caller is told of exactly those skills that the rules let them see, by every method."""
    seen = allowed(rule, "see", "publish", "manage")
    visible = [row for row in rows if covers(seen, row.uri)]
    everything = {row.uri for row in visible}
    versions = {row.uri for row in visible if row.is_pin}
    shown = {row.uri for row in visible if row.listed}
    # Those of a skill inside another are in versions of the outer one too, where they are not a skill.
    files = {file for row in visible for file in lines_in(row.entry)}

    assert await listed(caller, "skills/list", "skills") == shown
    assert await listed(caller, "resources/list", "resources") == shown
    assert await answered(caller, "skills/get", EVER) == everything
    assert await answered(caller, "resources/read", files_ever) == files
    assert await in_directories(caller) == files
    assert await completed(caller) == files
    found = await searched(caller)
    assert found - versions == everything - versions and found <= everything


# What happens


def contents_of(step: Step) -> Iterator[tuple[str, Files]]:
    """Yield the files of the skills of a step; one around another has the other's files too."""
    own: dict[str, Files] = {}
    flag = "" if step.is_listed else 'metadata: {skillwire/listed: "false"}\n'
    for path in step.paths:
        name = path.rpartition("/")[2]
        own[path] = {"SKILL.md": skill_md(name, body=step.body, extra=flag), "notes/a.md": step.body.encode()}
    for path in step.paths:
        inner = {
            f"{other.removeprefix(f'{path}/')}/{file}": content
            for other in step.paths
            if other.startswith(f"{path}/")
            for file, content in own[other].items()
        }
        yield path, {**own[path], **inner}


async def take(world: World, step: Step, rule: Rule) -> None:
    """Try something, and check that only roles decide whether it is refused as not allowed."""
    caller, uris = world.caller(step.caller), [f"skill://{path}/SKILL.md" for path in step.paths]
    before = await world.catalog.revision()
    may_manage = allowed(rule, "manage")
    if step.action == "publish":
        contents = dict(contents_of(step))
        nested = {path for path in contents if any(path.startswith(f"{other}/") for other in contents)}
        drafts = [
            draft_of(path, files, version="" if path in nested else step.version)
            for path, files in contents.items()
        ]
        published = [draft.entry.uri.text for draft in drafts]
        published += [version_of(draft.entry.uri.text) for draft in drafts if draft.version]
        is_allowed = all(covers(allowed(rule, "publish", "manage"), uri) for uri in published)
        status, plan = await caller.call("plan", drafts=as_json(*drafts))
        if status == 200:
            uploads = await caller.upload(*{file for files in contents.values() for file in files.values()})
            status, _ = await caller.call(
                "publish", drafts=as_json(*drafts), seen=plan["seen"], uploads=uploads
            )
    elif step.action == "unpublish":
        is_allowed = all(covers(may_manage, uri) for uri in uris)
        status, _ = await caller.call("unpublish", uris=uris)
    else:
        is_allowed = covers(may_manage, uris[0])
        status, _ = await caller.call("rollback", uri=uris[0], revision=max(1, before - 1))
    assert (status == 403) == (not is_allowed), (step, status)
    assert status in (200, 403, 404, 409), status
    if status != 200:
        assert await world.catalog.revision() == before


def states(rows: Sequence[SkillRow], rule: Rule, *, is_listed: bool) -> set[tuple[str, str]]:
    seen = allowed(rule, "see", "publish", "manage")
    return {(row.uri, row.digest) for row in rows if covers(seen, row.uri) and (row.listed or not is_listed)}


async def play(scenario: Scenario, url: str, folder: Path) -> None:
    """Take all steps; after each, ask every caller everything, and check what streams announced."""
    rights, taken = scenario
    names = ("root", *CALLERS)
    by_name: dict[str, Rule] = dict(zip(names, ({"manage": ["*"]}, *rights), strict=True))
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(a_world(url, folder, rules_text(rights)))
        heard: dict[str, Heard] = {
            name: await stack.enter_async_context(listening(world.caller(name), "modern")) for name in names
        }
        rows: list[SkillRow] = []
        files_ever: set[str] = set()
        for step in taken:
            told = {name: len(one.events) for name, one in heard.items()}
            await take(world, step, by_name[step.caller])
            before, rows = rows, [row for row in await rows_after(world.catalog) if row.is_current]
            files_ever.update(*(lines_in(row.entry) for row in rows))
            for name, rule in by_name.items():
                await require_agreement(world.caller(name), rows, rule, files_ever)
                shown = [states(state, rule, is_listed=True) for state in (before, rows)]
                if shown[0] != shown[1]:
                    await heard[name].wait_for_more(told[name])
            if rows != before:
                # What is announced too late would count for the next step.
                await anyio.sleep(0.3)
            for name, rule in by_name.items():
                whole = [states(state, rule, is_listed=False) for state in (before, rows)]
                if whole[0] == whole[1]:
                    assert len(heard[name].events) == told[name], (name, step)
            assert not any(one.is_over for one in heard.values())


def run(scenario: Scenario, url: str) -> None:
    with TemporaryDirectory() as folder:
        anyio.run(partial(play, scenario, url or f"sqlite:///{folder}/catalog.db", Path(folder)))


TIMES = 5 if os.environ.get("SKILLWIRE_EXAMPLES") == "proof" else 1
"""How many times more examples there are before a release."""


def often(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    slow = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    # To find a smaller example takes minutes.
    phases = (Phase.explicit, Phase.reuse, Phase.generate)
    return settings(max_examples=examples * TIMES, deadline=None, suppress_health_check=slow, phases=phases)


@often(12)
@given(scenarios)
def test_every_method_agrees_on_what_a_caller_may_see_on_sqlite(scenario: Scenario) -> None:
    run(scenario, "")


@often(3)
@given(scenarios)
def test_every_method_agrees_on_what_a_caller_may_see_on_postgresql(
    postgres: str, scenario: Scenario
) -> None:
    url = new_database(postgres)
    try:
        run(scenario, url)
    finally:
        drop_database(postgres, url)
