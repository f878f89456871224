"""From measurements to artefacts: held-out validation, fitting, the papers' experiments."""
