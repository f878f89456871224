"""Other people's measurements, brought in through the one ingestion service. Registered in IMPORTERS."""

from app.services.importers import cuda_kernels

IMPORTERS = (cuda_kernels.IMPORTER,)
