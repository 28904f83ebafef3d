"""Skills as a web site: one index, and an artifact for each skill, named by its digest.

The same bytes are served over HTTP and written into a folder. The site is built
from one snapshot, and is public as a whole or not at all.
"""
