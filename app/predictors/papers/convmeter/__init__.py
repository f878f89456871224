"""`convmeter` and `convmeter_ols`: ConvMeter (Beringer et al., ICPP 2024)."""
