"""Process plumbing that imports nothing else of the application: logging, the watch on a parent, returned memory."""
