"""All access to the database and to stored files."""
