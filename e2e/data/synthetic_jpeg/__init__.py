"""Synthetic JPEG datasets: photo-like images in class folders, with the sizes of ImageNet."""
