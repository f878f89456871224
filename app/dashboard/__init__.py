"""The dashboard: query strings to API requests, and API answers to pages, tables and charts."""
