"""What outlives a run, on a disk that is not believed: private files, seals, the cache, the audit log."""
