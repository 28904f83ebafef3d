"""Catalogs: skills of many publishers in a database, with every revision, for many servers.

A catalog is on SQLite or PostgreSQL, with the files of skills in a store of
blobs. This package publishes, keeps the history and reads what changed; it
does not speak MCP, and decides nothing about who may do what.
"""

from typing import TYPE_CHECKING

from skillwire.lazy import lazy_names

if TYPE_CHECKING:
    from skillwire.catalog.model import (
        AuditEvent,
        CatalogConflictError,
        CatalogError,
        ChangeKind,
        Draft,
        NewerSchemaError,
        Publication,
        PublishPlan,
        Revision,
        SkillChange,
        SkillRow,
        SkillVersion,
    )
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "model": (
                "AuditEvent CatalogConflictError CatalogError ChangeKind Draft NewerSchemaError Publication "
                "PublishPlan Revision SkillChange SkillRow SkillVersion"
            ),
        },
    )

__all__ = [
    "AuditEvent",
    "CatalogConflictError",
    "CatalogError",
    "ChangeKind",
    "Draft",
    "NewerSchemaError",
    "Publication",
    "PublishPlan",
    "Revision",
    "SkillChange",
    "SkillRow",
    "SkillVersion",
]
