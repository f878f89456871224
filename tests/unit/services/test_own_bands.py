"""Bands of operators in the steps of a served model."""

from __future__ import annotations

from app.bands.band import EXACT, Band
from app.services.serving.predict_serving import ServedStep, own_bands


def test_embeddings_have_no_steps_that_decode() -> None:
    own = Band(0.1, 0.2)
    bands = own_bands({("prefill", 4, 256): ServedStep(own, None)})
    assert bands.token == EXACT and bands.first == own
