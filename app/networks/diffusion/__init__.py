"""Diffusion transformers: the denoiser of images and videos, one forward pass of it."""
