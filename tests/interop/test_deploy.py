"""The files in `deploy/`, judged by the tools of those they are written for, and run as far as a test can."""

import http.client
import json
import re
import shutil
import time
import tomllib
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

import documents
from configs import configured
from deployed import (
    DEPLOY,
    LISTINGS,
    PROMPTLY,
    RULES,
    SITE,
    UNIT,
    UPSTREAM,
    WITHIN,
    Site,
    collecting,
    command_of_the_unit,
    found,
    listed_uris,
    run,
    running_site,
    traced_server,
    wait_until,
)
from folders import write_skill
from interop.tools import HERE, Node
from skillwire.cli.app import load_command
from skillwire.server.access.rules import parse_rules
from skillwire.server.access.settings import ANONYMOUS, Caller
from skillwire.server.config import parse_config
from skillwire.server.ops.metrics import CLASS_NUMBERS, CLASSES, MCP_METHODS, METHODS

CONTAINERFILE = DEPLOY / "Containerfile"
COMPOSE = DEPLOY / "compose.yaml"
CATALOG = DEPLOY / "catalog"
CATALOG_COMPOSE = CATALOG / "compose.yaml"
KUBERNETES = CATALOG / "kubernetes.yaml"
# The oldest version that the manifest names, and the newest that the tool knows.
KUBERNETES_VERSIONS = ("1.30", "1.37")
DCLINT = HERE / "node_modules" / "dclint" / "bin" / "dclint.cjs"

# Tenths: how much of a machine a service could touch, as systemd sees it. Without hardening it is 96.
MOST_EXPOSED = 20


def services_of(compose: Path) -> dict[str, Any]:
    return yaml.safe_load(compose.read_text())["services"]


def objects() -> list[dict[str, Any]]:
    """Return the objects of the Kubernetes manifest."""
    return list(yaml.safe_load_all(KUBERNETES.read_text()))


def pods() -> list[dict[str, Any]]:
    """Return the specifications of the pods of the manifest."""
    found = {one["kind"]: one["spec"] for one in objects() if "spec" in one}
    maintenance = found["CronJob"]["jobTemplate"]["spec"]["template"]["spec"]
    return [found["Deployment"]["template"]["spec"], maintenance]


def containers() -> dict[str, dict[str, Any]]:
    every = [one for pod in pods() for one in (*pod.get("initContainers", ()), *pod["containers"])]
    return {one["name"]: one for one in every}


def commands() -> dict[str, list[str]]:
    """Return the arguments of `skillwire` in every file that has some."""
    cmd = re.search(r"(?m)^CMD (\[.*\])$", CONTAINERFILE.read_text())
    assert cmd is not None
    services = services_of(CATALOG_COMPOSE)
    return {
        "unit": command_of_the_unit()[1:],
        "image": json.loads(cmd[1]),
        "compose": services_of(COMPOSE)["skillwire"]["command"],
        **{name: services[name]["command"] for name in ("skillwire-1", "skillwire-2", "publish")},
        **{f"kubernetes {name}": container["args"] for name, container in containers().items()},
    }


@pytest.mark.parametrize("place", commands())
def test_every_option_that_a_file_uses_is_one_of_the_command(place: str) -> None:
    name, *words = commands()[place]
    command = load_command(name)
    if name == "catalog":
        command = command.commands[words[0]]

    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} - known == set()


def test_all_files_and_the_pages_about_them_mean_the_same_ports() -> None:
    site = SITE.read_text()
    page = documents.text_of("operations/start.md", "operations/proxy.md")
    upstreams = UPSTREAM.read_text() + (CATALOG / UPSTREAM.name).read_text()
    service = next(one for one in objects() if one["kind"] == "Service")["spec"]

    served = [words for words in commands().values() if words[0] == "serve"]
    at = {words[words.index("--http") + 1].rpartition(":")[2] for words in served}
    files = (CONTAINERFILE, COMPOSE, CATALOG_COMPOSE, UNIT)
    texts = "".join([site, page, *(file.read_text() for file in files)])
    behind = set(re.findall(r"127\.0\.0\.1:(\d+)", texts)) | set(re.findall(r"EXPOSE (\d+)", texts))
    balanced = set(re.findall(r"server [\d.]+:(\d+);", upstreams))
    container = containers()["skillwire"]
    before = re.findall(r"(?m)^ +listen (?:\[::\]:)?(\d+)", site)

    assert at | behind | balanced == {"8000"}
    assert container["ports"] == [{"name": "http", "containerPort": 8000}]
    probes = [container[probe]["httpGet"] for probe in ("readinessProbe", "livenessProbe")]
    assert probes == [{"path": "/readyz", "port": "http"}, {"path": "/healthz", "port": "http"}]
    assert service["ports"] == [{"name": "http", "port": 80, "targetPort": "http"}]
    assert before == ["80", "80", "443", "443"]
    for published in (services_of(COMPOSE)["skillwire"], services_of(CATALOG_COMPOSE)["proxy"]):
        assert published["ports"] == ["0.0.0.0:80:80", "0.0.0.0:443:443"]
    assert set(re.findall(r"https://skills\.example\.com[^/\s]*", page)) == {"https://skills.example.com"}


def test_the_addresses_of_the_replicas_and_of_the_proxy_are_the_same_in_all_files() -> None:
    services = services_of(CATALOG_COMPOSE)
    upstream = (CATALOG / UPSTREAM.name).read_text()
    options = tomllib.loads((CATALOG / "serve.toml").read_text())

    at = {
        name: service["networks"]["back"]["ipv4_address"]
        for name, service in services.items()
        if service["networks"]["back"]
    }
    assert re.findall(r"server ([\d.]+):", upstream) == [at["skillwire-1"], at["skillwire-2"]]
    assert options["proxy"] == [at["proxy"]]
    networks = yaml.safe_load(CATALOG_COMPOSE.read_text())["networks"]
    [subnet] = networks["back"]["ipam"]["config"]
    for address in map(ip_address, at.values()):
        assert address in ip_network(subnet["subnet"])
        # These are given to others.
        assert address not in ip_network(subnet["ip_range"])


@pytest.mark.parametrize("compose", [COMPOSE, CATALOG_COMPOSE], ids=["folder", "catalog"])
def test_the_proxy_has_the_site_and_the_upstream_that_belongs_to_it(compose: Path) -> None:
    volumes = services_of(compose)["proxy"]["volumes"]
    sources = [(compose.parent / volume["source"]).resolve() for volume in volumes]

    assert sources[:2] == [SITE, compose.parent / UPSTREAM.name]
    targets = [volume["target"] for volume in volumes[:2]]
    assert [Path(target).parent for target in targets] == [Path("/etc/nginx/conf.d")] * 2
    assert len({*targets}) == 2 and all(target.endswith(".conf") for target in targets)


def test_the_options_that_the_manifest_has_are_options() -> None:
    data = next(one for one in objects() if one["kind"] == "ConfigMap")["data"]

    options = parse_config(data["serve.toml"].encode(), Path("serve.toml"))

    assert options["access"] == Path("access.toml")
    assert parse_rules(data["access.toml"].encode())


def test_no_file_has_a_password_and_a_password_is_in_no_url() -> None:
    texts = [file.read_text() for file in DEPLOY.rglob("*") if file.is_file()]
    variables = [service.get("environment", {}) for service in services_of(CATALOG_COMPOSE).values()]

    assert [text for text in texts if re.search(r"//[^/\s:@]+:[^/\s@]+@", text)] == []
    secret = {name: value for some in variables for name, value in some.items() if "PASS" in name}
    assert secret == {
        "POSTGRES_PASSWORD_FILE": "/run/secrets/password",
        "PGPASSFILE": "/run/secrets/pgpass",
    }
    assert "Secret" not in {one["kind"] for one in objects()}
    for container in containers().values():
        assert container["envFrom"] == [{"secretRef": {"name": "skillwire-database"}}]
        assert all("value" not in variable for variable in container.get("env", ()))


def test_images_of_others_have_a_version() -> None:
    services = [*services_of(COMPOSE).values(), *services_of(CATALOG_COMPOSE).values()]
    images = [service["image"] for service in services if "build" not in service]
    images += [container["image"] for container in containers().values()]

    assert [image for image in images if not re.search(r":\d+(\.\d+)+[-a-z0-9]*$", image)] == []


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_the_manifest_follows_the_schemas_of_kubernetes(tmp_path: Path, version: str) -> None:
    validate = found("kubernetes-validate")
    worse = tmp_path / KUBERNETES.name
    worse.write_text(KUBERNETES.read_text().replace("readinessProbe:", "readyProbe:", 1))

    done = run(validate, "--strict", "--kubernetes-version", version, KUBERNETES)
    objecting = run(validate, "--strict", "--kubernetes-version", version, worse)

    assert (done.returncode, done.stderr) == (0, "")
    # Of a kind that it does not know it only warns.
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["INFO"] * len(objects())
    assert objecting.returncode == 1
    assert "readyProbe" in objecting.stdout


def test_the_pods_of_the_manifest_need_no_more_than_the_restricted_standard_allows() -> None:
    for pod in pods():
        context = pod["securityContext"]
        assert context["runAsNonRoot"] and context["runAsUser"] == context["fsGroup"] == 10001
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        mounted = {volume["name"] for volume in pod["volumes"]}
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "memory" in container["resources"]["limits"]
            assert {mount["name"] for mount in container["volumeMounts"]} <= mounted
        assert all(volume["emptyDir"]["sizeLimit"] for volume in pod["volumes"] if "emptyDir" in volume)


def test_the_objects_of_the_manifest_find_each_other() -> None:
    found = {one["kind"]: one for one in objects()}
    pod = found["Deployment"]["spec"]["template"]
    labels = pod["metadata"]["labels"]

    selectors = [
        found["Deployment"]["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        pod["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
    ]
    assert selectors == [labels] * 4
    assert found["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"] != labels
    [rule] = found["Ingress"]["spec"]["rules"]
    [path] = rule["http"]["paths"]
    assert path["backend"]["service"] == {"name": "skillwire", "port": {"name": "http"}}
    names = {kind: one["metadata"]["name"] for kind, one in found.items()}
    used = {name: volume for one in pods() for volume in one["volumes"] for name in [volume["name"]]}
    assert used["options"]["configMap"]["name"] == names["ConfigMap"]
    assert used["backups"]["persistentVolumeClaim"]["claimName"] == names["PersistentVolumeClaim"]


def test_what_nginx_may_send_twice_are_the_requests_that_only_read() -> None:
    patterns = re.findall(r'(?m)^    "~(\^.*)" 1;$', SITE.read_text())
    classes = {method: CLASSES[number] for method, number in zip(METHODS, CLASS_NUMBERS, strict=True)}

    repeated = {method for method in MCP_METHODS if any(re.search(one, method) for one in patterns)}

    reading = {method for method in MCP_METHODS if classes[method] in ("list", "read")}
    assert repeated == reading | {"server/discover"}


@pytest.mark.parametrize("has_scripts", [False, True], ids=["plain", "scripts"])
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path, has_scripts: bool) -> None:
    analyze = found("systemd-analyze")
    unit = tmp_path / UNIT.name
    # It looks for the programs, and ours is not installed.
    unit.write_text(UNIT.read_text().replace("/opt/skillwire/bin/skillwire", shutil.which("true") or ""))
    if has_scripts:
        hint = re.search(r"(?m)^#   (\[Service\]\n(?:#   .*\n)+)", UNIT.read_text())
        assert hint is not None
        (tmp_path / f"{UNIT.name}.d").mkdir()
        (tmp_path / f"{UNIT.name}.d" / "scripts.conf").write_text(hint[1].replace("#   ", ""))

    done = run(analyze, "verify", "--man=no", "--recursive-errors=no", unit)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_mistake_in_a_unit_would_be_found(tmp_path: Path) -> None:
    analyze = found("systemd-analyze")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("ProtectClock=yes", "ProtectClocks=yes"))

    done = run(analyze, "verify", "--man=no", "--recursive-errors=no", unit)

    assert "ProtectClocks" in done.stderr


def test_the_service_can_touch_little_of_the_machine() -> None:
    analyze = found("systemd-analyze")

    done = run(analyze, "security", "--offline=true", f"--threshold={MOST_EXPOSED}", "--no-pager", UNIT)

    assert done.returncode == 0, done.stdout[-3000:]


def test_hadolint_finds_nothing_wrong_with_the_containerfile(tmp_path: Path) -> None:
    hadolint = found("hadolint")
    worse = tmp_path / "Containerfile"
    worse.write_text(f"{CONTAINERFILE.read_text()}USER root\nRUN pip install requests\n")

    done = run(hadolint, "--failure-threshold", "style", CONTAINERFILE)
    objecting = run(hadolint, "--failure-threshold", "style", worse)

    assert (done.returncode, done.stdout) == (0, "")
    assert objecting.returncode == 1


def test_what_goes_into_the_image_is_there_and_runs_as_nobody_special() -> None:
    text = CONTAINERFILE.read_text()

    copied = [
        line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ") and "--" not in line
    ]

    names = [name for names in copied for name in names]
    assert names
    assert [name for name in names if not (DEPLOY.parent / name).exists()] == []
    assert re.findall(r"(?m)^USER (.*)$", text) == ["10001:10001"]
    extras = re.search(r'"\$\{wheel\}\[(.*)\]"', text)
    assert extras is not None
    assert set(extras[1].split(",")) == {"auth", "postgres", "s3"}
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    assert set(extras[1].split(",")) <= set(project["optional-dependencies"])


@pytest.mark.parametrize("compose", [COMPOSE, CATALOG_COMPOSE], ids=["folder", "catalog"])
def test_the_compose_file_follows_the_schema_and_the_habits_of_its_kind(
    node: Node, tmp_path: Path, compose: Path
) -> None:
    worse = tmp_path / compose.name
    worse.write_text(compose.read_text().replace("    read_only:", "    readonly:", 1))

    done = node.run(DCLINT, "--max-warnings", "0", compose)
    objecting = node.run(DCLINT, "--max-warnings", "0", worse)

    assert done.returncode == 0, done.stdout
    assert objecting.returncode == 1
    assert "invalid-schema" in objecting.stdout


@pytest.mark.parametrize("compose", [COMPOSE, CATALOG_COMPOSE], ids=["folder", "catalog"])
def test_no_service_of_the_compose_file_may_write_or_rise(compose: Path) -> None:
    for name, service in services_of(compose).items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service, name
        assert "memory" in service["deploy"]["resources"]["limits"], name
        # The database is the only one that keeps something.
        written = [volume for volume in service["volumes"] if not volume.get("read_only")]
        assert [volume["source"] for volume in written] == (["database"] if name == "db" else []), name


def test_the_rules_allow_what_their_remarks_say() -> None:
    rules = parse_rules(RULES.read_bytes())

    someone = rules.visibility_of(Caller("a", token="a"))
    member = rules.visibility_of(Caller("a", token="a", groups=frozenset({"billing"})))
    prometheus = rules.visibility_of(Caller("prometheus", token="prometheus"))
    operator = rules.visibility_of(Caller("operator", token="operator"))

    assert (someone.prefixes, someone.runnable, someone.can_operate) == (("skill://shared",), (), False)
    assert member.prefixes == ("skill://acme/billing", "skill://shared")
    assert member.runnable == ("skill://acme/billing",)
    assert prometheus.can_operate and not operator.prefixes == prometheus.prefixes
    assert operator.is_unrestricted and operator.can_operate
    assert rules.visibility_of(ANONYMOUS).prefixes == ()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("site")) as site:
        yield site


def test_both_generations_are_served_over_tls_and_see_what_the_rules_allow(site: Site) -> None:
    assert site.listed("modern") == site.listed("legacy") == ["skill://shared/hello/SKILL.md"]


def test_who_has_no_token_is_turned_away(site: Site) -> None:
    with site.connection() as connection:
        response = site.post(connection, LISTINGS["modern"], Authorization="Bearer wrong")
        body = response.read()

    assert response.status == 401
    assert response.headers["WWW-Authenticate"].startswith("Bearer ")
    assert b"shared" not in body


def test_a_stream_is_not_held_back_by_the_proxy(site: Site) -> None:
    start = time.monotonic()
    with site.listening() as next_event:
        heard = next_event()
        write_skill(site.folder / "shared" / "later")
        told = next_event()
        took = time.monotonic() - start

    assert heard is not None and heard["method"] == "notifications/subscriptions/acknowledged"
    assert told is not None and told["method"] == "notifications/resources/list_changed"
    assert took < PROMPTLY
    shutil.rmtree(site.folder / "shared" / "later")
    wait_until(lambda: len(site.listed()) == 1, WITHIN, "it is gone again")


def test_the_proxy_gives_each_request_an_id_that_the_log_and_the_answer_carry(site: Site) -> None:
    with site.connection() as connection:
        response = site.post(connection, LISTINGS["modern"], **{"X-Request-Id": "mine"})
        response.read()
    name = response.headers["X-Request-Id"]

    assert re.fullmatch(r"[0-9a-f]{32}", name)
    wait_until(lambda: name in site.words(), WITHIN, "the line of the request")
    line = json.loads(next(line for line in site.words().splitlines() if name in line))
    assert (line["mcp"], line["status"], line["caller"]) == ("skills/list", 200, "reader")
    assert site.token not in site.words()


def test_strangers_are_told_apart_behind_the_proxy_so_that_none_uses_up_what_others_may(site: Site) -> None:
    with site.connection("127.0.0.2") as connection:
        statuses = list[int]()
        while 429 not in statuses and len(statuses) < 2000:
            response = site.post(
                connection,
                LISTINGS["modern"],
                Authorization="Bearer wrong",
                **{"X-Forwarded-For": "127.0.0.3"},
            )
            response.read()
            statuses.append(response.status)
    with site.connection("127.0.0.3") as connection:
        other = site.post(connection, LISTINGS["modern"], Authorization="Bearer wrong")
        other.read()

    assert set(statuses) == {401, 429}
    assert other.status == 401


def test_how_the_server_does_and_what_is_too_large_stop_at_the_proxy(site: Site) -> None:
    with site.connection() as connection:
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {site.token}"})
        metrics = connection.getresponse()
        metrics.read()
        connection.request("POST", "/mcp", headers={"Content-Length": str(5 * 1024 * 1024)})
        large = connection.getresponse()
        large.read()
    with site.connection() as connection:
        connection.request("GET", "/readyz")
        ready = connection.getresponse()
        ready.read()

    assert (metrics.status, large.status, ready.status) == (404, 413, 200)
    assert metrics.headers["Server"] == "nginx"
    assert metrics.headers["Strict-Transport-Security"] == "max-age=31536000"


def test_who_comes_without_tls_is_sent_where_it_is(site: Site) -> None:
    connection = http.client.HTTPConnection("localhost", site.plain_port, timeout=WITHIN)
    try:
        connection.request("GET", "/skills")
        response = connection.getresponse()
        response.read()
    finally:
        connection.close()

    assert (response.status, response.headers["Location"]) == (301, "https://localhost/skills")


def test_opentelemetry_instrument_sends_spans_of_all_workers_to_a_collector(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "hello")
    words = (tmp_path / "skills", "--workers", "2", *configured(tmp_path, access_log=True))

    with collecting() as collector, traced_server(collector, tmp_path, *words) as server:
        listed = [listed_uris(server.call(LISTINGS["modern"])) for _ in range(6)]
        # An exporter sends in its own time; at its end the server sends what is left.
        assert server.stop() == 0

    assert listed == [["skill://hello/SKILL.md"]] * 6
    sent = b"".join(collector.bodies)
    assert b"skills-of-a-test" in sent
    # The names of the SDK's span and of ours: also of requests that have a ready answer otherwise.
    assert sent.count(b"\x2a\x0bskills/list") == 6
    assert sent.count(b"\x2a\x04/mcp") == 6
    lines = [json.loads(line) for line in server.words.splitlines() if line.startswith('{"time"')]
    traces = {bytes.fromhex(line["trace_id"]) for line in lines}
    assert len(traces) == 6
    assert all(trace in sent for trace in traces)
