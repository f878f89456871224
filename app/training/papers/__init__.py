"""The papers' own experiments under their authors' protocols, cell by cell."""
