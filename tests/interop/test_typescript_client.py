"""The official TypeScript SDK's client, with its checks of every file, against our servers."""

import pytest

from interop.serving import EVERYWHERE, Endpoint
from interop.tools import Node
from interop.truth import Truth
from interop.walking import differences, unrefused, walk


@pytest.mark.requirement("NEG-01")
@pytest.mark.requirement("NEG-02")
@pytest.mark.requirement("NEG-03")
@pytest.mark.requirement("NEG-10")
@pytest.mark.requirement("URI-01")
@pytest.mark.requirement("META-01")
@pytest.mark.requirement("META-02")
@pytest.mark.requirement("LIST-03")
@pytest.mark.requirement("LIST-04")
@pytest.mark.requirement("LIST-05")
@pytest.mark.requirement("LIST-06")
@pytest.mark.requirement("LIST-07")
@pytest.mark.requirement("LIST-08")
@pytest.mark.requirement("LIST-12")
@pytest.mark.requirement("LIST-13")
@pytest.mark.requirement("LIST-14")
@pytest.mark.requirement("LIST-16")
@pytest.mark.requirement("GET-01")
@pytest.mark.requirement("GET-02")
@pytest.mark.requirement("GET-03")
@pytest.mark.requirement("GET-07")
@pytest.mark.requirement("READ-01")
@pytest.mark.requirement("READ-02")
@pytest.mark.requirement("READ-08")
@pytest.mark.requirement("READ-09")
@pytest.mark.requirement("READ-10")
@pytest.mark.requirement("DIR-01")
@pytest.mark.requirement("DIR-02")
@pytest.mark.requirement("DIR-03")
@pytest.mark.requirement("DIR-04")
@pytest.mark.requirement("DIR-05")
@pytest.mark.requirement("DIR-06")
@pytest.mark.requirement("DIR-14")
@pytest.mark.requirement("INT-01")
@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize(("server", "transport"), EVERYWHERE)
def test_the_typescript_client_finds_exactly_what_is_in_the_folder(
    node: Node, endpoint: Endpoint, era: str, truth: Truth, env: dict[str, str]
) -> None:
    report = walk(node, endpoint, era, env)

    assert differences(report, truth, era) == []
    assert unrefused(report, with_uri=True) == []
    resources = {resource["uri"]: resource for page in report["resourcePages"] for resource in page}
    described = {
        uri: (resource["name"], resource["description"], resource["mimeType"], resource["size"])
        for uri, resource in resources.items()
        if uri.startswith("skill:")
    }
    assert described == {
        entry["uri"]: (
            entry["frontmatter"]["name"],
            entry["frontmatter"]["description"],
            "text/markdown",
            truth.files[entry["uri"]].stat().st_size,
        )
        for entry in truth.entries
    }
    assert "skill://{+path}" in [template["uriTemplate"] for template in report["templates"]]
