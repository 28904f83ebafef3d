"""A folder of skills: scanned, watched and published as snapshots."""
