"""GPUs beside one another on one workload: time, throughput, money and energy, and which of them differ at all."""
