"""What the pages of the dashboard show: query strings to API requests, API answers to tables and charts."""
