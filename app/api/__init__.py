"""The HTTP interface: one noun per file; parse, call one service, render."""
