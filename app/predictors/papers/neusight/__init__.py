"""`tilewave`: NeuSight (Lee, Phanishayee and Mahajan, ASPLOS 2025)."""
