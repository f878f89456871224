"""Other people's measurements, brought in through the one ingestion service. Registered in IMPORTERS."""

from app.services.measurements.importers import aiconfigurator, cuda_kernels, measurements, ncu, neusight, nsys, timm

IMPORTERS = (
    cuda_kernels.IMPORTER,
    neusight.IMPORTER,
    aiconfigurator.IMPORTER,
    timm.IMPORTER,
    nsys.IMPORTER,
    ncu.IMPORTER,
    measurements.IMPORTER,
)
