"""The table of `docs/publishing/serve-config.md` comes from the options: this module writes it."""

import re
from pathlib import Path

from skillwire.server.config import config_text, parse_config
from skillwire.server.options import OPTIONS, Option, ServeOptions, ValueKind, with_values

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "publishing" / "serve-config.md"
MARK = "<!-- Made from the program: python tests/unit/cli/test_documented_serve_config.py -->\n"

VALUES = {
    ValueKind.FLAG: "true or false",
    ValueKind.TEXT: "text",
    ValueKind.TEXTS: "list of texts",
    ValueKind.PATH: "path",
    ValueKind.PATHS: "list of paths",
}


def value_of(option: Option) -> str:
    bounds = f"{int(option.least)} to {int(option.most):,}"
    values = {**VALUES, ValueKind.WHOLE: f"whole number, {bounds}", ValueKind.NUMBER: f"number, {bounds}"}
    return values[option.kind]


def default_of(option: Option) -> str:
    text = config_text(with_values(ServeOptions(), {option.name: option.default}))
    found = re.search(rf"(?m)^{option.name} = (.*)$", text)
    return f"`{found[1]}`" if found else ""


def table() -> str:
    rows = ["| Key | Typed | Value | Default | Meaning | Live |", "| --- | --- | --- | --- | --- | --- |"]
    for option in OPTIONS.values():
        typed = (
            (option.metavar if option.kind is ValueKind.PATHS else option.flag)
            if option.on_command_line
            else ""
        )
        cells = [
            f"`{option.name}`",
            f"`{typed}`" if option.on_command_line else "",
            value_of(option),
            default_of(option),
            option.help,
            "yes" if option.is_live else "",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n{}\n\n".format("\n".join(rows))


def parts() -> tuple[str, str]:
    """Return the page before and after the table."""
    before, mark, rest = PAGE.read_text("utf-8").partition(MARK)
    assert mark
    return before + mark, re.sub(r"\A\n*(?:\|.*\n)*\n*", "", rest)


def test_the_table_has_every_key_as_the_program_knows_it() -> None:
    before, after = parts()

    assert PAGE.read_text("utf-8") == before + table() + after, f"python {Path(__file__).name} writes it"


def test_the_example_of_the_page_can_be_read() -> None:
    [example] = re.findall(r"```toml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)

    values = parse_config(example.encode(), Path("/etc/skillwire/serve.toml"))

    with_values(ServeOptions(), values).endpoint.check()


def test_every_link_of_the_page_leads_somewhere() -> None:
    for name, anchor in re.findall(r"\]\(([\w./-]+\.md)(?:#([\w-]+))?\)", PAGE.read_text("utf-8")):
        text = (PAGE.parent / name).read_text("utf-8")
        headings = {heading.lower().replace(" ", "-") for heading in re.findall(r"(?m)^#+ (.*)$", text)}
        assert not anchor or anchor in headings, (name, anchor)


if __name__ == "__main__":
    head, tail = parts()
    PAGE.write_text(head + table() + tail, "utf-8")
