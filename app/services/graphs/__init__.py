"""Networks given as graphs: read, checked and kept."""
