"""Persistent state, on a disk that is not trusted: private files, sealed files, the cache, the audit log."""
