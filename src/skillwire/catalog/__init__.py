"""Catalogs: skills of many publishers in a database, with every revision, for many servers.

A catalog is on SQLite or PostgreSQL, with the files of skills in a store of
blobs. This package publishes, keeps the history and reads what changed; it
does not speak MCP. Who may do what is decided by the rules of a server.
"""

from typing import TYPE_CHECKING

from skillwire.lazy import lazy_names

if TYPE_CHECKING:
    from skillwire.catalog.blobs import BlobStore
    from skillwire.catalog.catalog import Catalog, RowChanges, open_catalog
    from skillwire.catalog.database import Database, Transaction, open_database
    from skillwire.catalog.drafts import DraftSet, drafts_of, is_version, open_drafts, version_uri
    from skillwire.catalog.http import open_publishing
    from skillwire.catalog.model import (
        FOREVER,
        AuditEvent,
        CatalogConflictError,
        CatalogError,
        Draft,
        NewerSchemaError,
        NoCatalogError,
        Publication,
        PublishPlan,
        Revision,
        SkillChange,
        SkillChangeKind,
        SkillRow,
        SkillVersion,
    )
    from skillwire.catalog.remote import RemoteCatalog, open_remote
    from skillwire.catalog.source import CatalogSource
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "blobs": "BlobStore",
            "catalog": "Catalog RowChanges open_catalog",
            "database": "Database Transaction open_database",
            "drafts": "DraftSet drafts_of is_version open_drafts version_uri",
            "http": "open_publishing",
            "model": (
                "AuditEvent CatalogConflictError CatalogError Draft FOREVER NewerSchemaError NoCatalogError "
                "Publication PublishPlan Revision SkillChange SkillChangeKind SkillRow SkillVersion"
            ),
            "remote": "RemoteCatalog open_remote",
            "source": "CatalogSource",
        },
    )

__all__ = [
    "FOREVER",
    "AuditEvent",
    "BlobStore",
    "Catalog",
    "CatalogConflictError",
    "CatalogError",
    "CatalogSource",
    "Database",
    "Draft",
    "DraftSet",
    "NewerSchemaError",
    "NoCatalogError",
    "Publication",
    "PublishPlan",
    "RemoteCatalog",
    "Revision",
    "RowChanges",
    "SkillChange",
    "SkillChangeKind",
    "SkillRow",
    "SkillVersion",
    "Transaction",
    "drafts_of",
    "is_version",
    "open_catalog",
    "open_database",
    "open_drafts",
    "open_publishing",
    "open_remote",
    "version_uri",
]
