"""Configuration files for `skillwire serve` in tests."""

import json
import os
import tempfile
from pathlib import Path


def configured(folder: Path, **options: object) -> tuple[str, str]:
    """Write options into a new configuration file in `folder`, and return the words that name it."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, path = tempfile.mkstemp(suffix=".toml", prefix="serve-", dir=folder)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        for name, value in options.items():
            file.write(f"{name} = {_toml(value)}\n")
    return "--config", path


def _toml(value: object) -> str:
    # JSON writes numbers, truth, text and lists as TOML does.
    return json.dumps(value, default=str, ensure_ascii=False)
