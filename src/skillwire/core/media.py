"""Media types by file name: a fixed table, so that every machine answers alike.

The system's own type database differs from host to host, and a listing that
changes with the machine would be no snapshot.
"""

DEFAULT_MEDIA_TYPE = "application/octet-stream"
DIRECTORY_MEDIA_TYPE = "inode/directory"

_BY_SUFFIX = {
    "bash": "application/x-sh",
    "bmp": "image/bmp",
    "c": "text/x-c",
    "cfg": "text/plain",
    "cpp": "text/x-c++",
    "css": "text/css",
    "csv": "text/csv",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "gif": "image/gif",
    "go": "text/x-go",
    "gql": "application/graphql",
    "graphql": "application/graphql",
    "gz": "application/gzip",
    "htm": "text/html",
    "html": "text/html",
    "ico": "image/vnd.microsoft.icon",
    "ini": "text/plain",
    "ipynb": "application/x-ipynb+json",
    "java": "text/x-java",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "js": "text/javascript",
    "json": "application/json",
    "jsonl": "application/jsonl",
    "jsx": "text/javascript",
    "log": "text/plain",
    "markdown": "text/markdown",
    "md": "text/markdown",
    "mdx": "text/markdown",
    "mjs": "text/javascript",
    "mp3": "audio/mpeg",
    "mp4": "video/mp4",
    "otf": "font/otf",
    "pdf": "application/pdf",
    "php": "text/x-php",
    "pl": "text/x-perl",
    "png": "image/png",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "ps1": "text/x-powershell",
    "py": "text/x-python",
    "r": "text/x-r",
    "rb": "text/x-ruby",
    "rs": "text/x-rust",
    "rst": "text/x-rst",
    "sh": "application/x-sh",
    "sql": "application/sql",
    "svg": "image/svg+xml",
    "tar": "application/x-tar",
    "tgz": "application/gzip",
    "toml": "application/toml",
    "ts": "text/typescript",
    "tsv": "text/tab-separated-values",
    "tsx": "text/typescript",
    "ttf": "font/ttf",
    "txt": "text/plain",
    "wasm": "application/wasm",
    "wav": "audio/wav",
    "webp": "image/webp",
    "woff": "font/woff",
    "woff2": "font/woff2",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "xml": "application/xml",
    "xsd": "application/xml",
    "yaml": "application/yaml",
    "yml": "application/yaml",
    "zip": "application/zip",
}
_TEXT_BY_NAME = frozenset({"dockerfile", "license", "makefile", "notice", "readme"})


def media_type_of(path: str) -> str:
    """Return the media type of the file at `path`, by its name alone."""
    name = path.rpartition("/")[2].lower()
    stem, dot, suffix = name.rpartition(".")
    if dot and stem:
        return _BY_SUFFIX.get(suffix, DEFAULT_MEDIA_TYPE)
    return "text/plain" if name in _TEXT_BY_NAME else DEFAULT_MEDIA_TYPE
