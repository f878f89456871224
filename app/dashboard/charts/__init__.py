"""Charts of answers, drawn on the server for files and reports."""
