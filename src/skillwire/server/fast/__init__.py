"""The fast path: prepared answers for frequent requests, without the SDK."""
