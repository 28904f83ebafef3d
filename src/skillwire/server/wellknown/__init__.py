"""Skills as a web site: one index, and an artifact for each skill that is named by its digest.

The same bytes are served over HTTP and written into a folder. Everything comes
from one snapshot; whoever may see the site may see all of it.
"""
