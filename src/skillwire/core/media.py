"""Media types by file name: a fixed table, so that all machines give the same result.

The system's own type database differs between machines, and listings must not.
"""

from enum import StrEnum

DEFAULT_MEDIA_TYPE = "application/octet-stream"
DIRECTORY_MEDIA_TYPE = "inode/directory"

_BY_SUFFIX = {
    "7z": "application/x-7z-compressed",
    "avif": "image/avif",
    "bash": "application/x-sh",
    "bmp": "image/bmp",
    "bz2": "application/x-bzip2",
    "c": "text/x-c",
    "cc": "text/x-c++",
    "cfg": "text/plain",
    "cjs": "text/javascript",
    "conf": "text/plain",
    "cpp": "text/x-c++",
    "cs": "text/x-csharp",
    "css": "text/css",
    "csv": "text/csv",
    "diff": "text/x-diff",
    "doc": "application/msword",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "epub": "application/epub+zip",
    "gif": "image/gif",
    "go": "text/x-go",
    "gql": "application/graphql",
    "graphql": "application/graphql",
    "gz": "application/gzip",
    "h": "text/x-c",
    "hpp": "text/x-c++",
    "htm": "text/html",
    "html": "text/html",
    "ico": "image/vnd.microsoft.icon",
    "ics": "text/calendar",
    "ini": "text/plain",
    "ipynb": "application/x-ipynb+json",
    "java": "text/x-java",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "js": "text/javascript",
    "json": "application/json",
    "json5": "application/json5",
    "jsonc": "application/jsonc",
    "jsonl": "application/jsonl",
    "jsx": "text/javascript",
    "kt": "text/x-kotlin",
    "log": "text/plain",
    "lua": "text/x-lua",
    "markdown": "text/markdown",
    "md": "text/markdown",
    "mdx": "text/markdown",
    "mjs": "text/javascript",
    "mov": "video/quicktime",
    "mp3": "audio/mpeg",
    "mp4": "video/mp4",
    "odt": "application/vnd.oasis.opendocument.text",
    "ogg": "audio/ogg",
    "otf": "font/otf",
    "patch": "text/x-diff",
    "pdf": "application/pdf",
    "php": "text/x-php",
    "pl": "text/x-perl",
    "png": "image/png",
    "ppt": "application/vnd.ms-powerpoint",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "properties": "text/plain",
    "proto": "text/x-protobuf",
    "ps1": "text/x-powershell",
    "py": "text/x-python",
    "r": "text/x-r",
    "rb": "text/x-ruby",
    "rs": "text/x-rust",
    "rst": "text/x-rst",
    "rtf": "application/rtf",
    "scss": "text/x-scss",
    "sh": "application/x-sh",
    "sql": "application/sql",
    "svg": "image/svg+xml",
    "swift": "text/x-swift",
    "tar": "application/x-tar",
    "tex": "application/x-tex",
    "text": "text/plain",
    "tgz": "application/gzip",
    "tif": "image/tiff",
    "tiff": "image/tiff",
    "toml": "application/toml",
    "ts": "text/typescript",
    "tsv": "text/tab-separated-values",
    "tsx": "text/typescript",
    "ttf": "font/ttf",
    "txt": "text/plain",
    "vtt": "text/vtt",
    "wasm": "application/wasm",
    "wav": "audio/wav",
    "webm": "video/webm",
    "webp": "image/webp",
    "woff": "font/woff",
    "woff2": "font/woff2",
    "xls": "application/vnd.ms-excel",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "xml": "application/xml",
    "xsd": "application/xml",
    "xz": "application/x-xz",
    "yaml": "application/yaml",
    "yml": "application/yaml",
    "zip": "application/zip",
    "zsh": "application/x-sh",
}
_TEXT_BY_NAME = frozenset({"dockerfile", "license", "makefile", "notice", "readme"})


def media_type_of(path: str) -> str:
    """Return the media type of the file at `path`, by its name alone."""
    name = path.rpartition("/")[2].lower()
    stem, dot, suffix = name.rpartition(".")
    if dot and stem:
        return _BY_SUFFIX.get(suffix, DEFAULT_MEDIA_TYPE)
    return "text/plain" if name in _TEXT_BY_NAME else DEFAULT_MEDIA_TYPE


# Archives: a whole skill as one file, packed reproducibly and unpacked with strict checks.


class ArchiveFormat(StrEnum):
    """An encoding of the same tree of files (ARC-02)."""

    TAR_GZ = "tar.gz"
    ZIP = "zip"

    @property
    def media_type(self) -> str:
        return _MEDIA_TYPES[self]

    @classmethod
    def of_media_type(cls, media_type: str) -> "ArchiveFormat | None":
        """Return the format of that media type, or None when it is not supported."""
        essence = media_type.partition(";")[0].strip().lower()
        return next((format for format in cls if format.media_type == essence), None)

    @classmethod
    def of_path(cls, path: str) -> "ArchiveFormat | None":
        """Return the format by the suffix of `path`, or None.

        Use it only where there is no media type.
        """
        name = path.lower()
        return next((format for suffix, format in _SUFFIXES.items() if name.endswith(suffix)), None)

    @classmethod
    def of_content(cls, data: bytes) -> "ArchiveFormat | None":
        """Return the format by the first bytes, which differ between the formats."""
        return next((format for start, format in _STARTS.items() if data.startswith(start)), None)


_MEDIA_TYPES = {ArchiveFormat.TAR_GZ: "application/gzip", ArchiveFormat.ZIP: "application/zip"}


_STARTS = {b"\x1f\x8b": ArchiveFormat.TAR_GZ, b"PK": ArchiveFormat.ZIP}


_SUFFIXES = {".tar.gz": ArchiveFormat.TAR_GZ, ".tgz": ArchiveFormat.TAR_GZ, ".zip": ArchiveFormat.ZIP}


# Resolution of the paths that a skill's texts use, and lists of its files.


_SCRIPT_SUFFIXES = frozenset(
    "bash bat cjs cmd com exe fish jar js ksh lua mjs php pl ps1 psm1 "
    "py pyw pyz rb sh so ts vbs wasm zsh".split()
)


_TEXT_SUFFIXES = frozenset(("csv", "json", "md", "toml", "txt", "yaml", "yml"))


def is_script(path: str) -> bool:
    """Return whether a file of a skill is a script, by its suffix or its folder."""
    suffix = path.rpartition("/")[2].rpartition(".")[2].lower()
    return suffix in _SCRIPT_SUFFIXES or (path.startswith("scripts/") and suffix not in _TEXT_SUFFIXES)
