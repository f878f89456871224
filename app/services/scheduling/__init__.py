"""Where a job goes: what cluster schedulers ask."""
